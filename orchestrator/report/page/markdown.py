"""The report as Markdown, for a pull request: the decision, the table, and pictures beside the file."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.report.export_markdown import code, escaped
from orchestrator.report.figures.figure import Figure
from orchestrator.report.figures.frontier import FAILED, MEMORY, REFUSED
from orchestrator.report.figures.stages import heat_map
from orchestrator.report.page.content import Content, Section
from orchestrator.report.page.decision import reason
from orchestrator.report.page.rounded import width
from orchestrator.report.page.unmeasured import Gap
from orchestrator.report.page.words import WORDS
from orchestrator.report.text import plain

_MOST_FAILURES = 20
_MOST_ALIKE = 12
_LONGEST_LINE = 300


def pictures(content: Content, stem: str) -> dict[str, Figure]:
    """The pictures that the text shows, by file name."""
    sections = [section for section in content.sections if section.is_drawn]
    figures = {f"{stem}-{section.frontier.name}.png": section.frontier for section in sections}
    first = content.first_shown()
    if first is not None and first.cells:
        title = f"Peak allocated memory by rank and stage: {first.name}"
        figures[f"{stem}-stages.png"] = heat_map("stages", title, first.cells, first.control_cells)
    return figures


def report_markdown(content: Content, shown: dict[str, Figure]) -> str:
    """The text. `shown` are the pictures that lie beside it."""
    by_figure = {figure.name: name for name, figure in shown.items()}
    lines = [f"# Which activations to recompute: {escaped(content.title)}", ""]
    for section in content.sections:
        lines += [*_decision(section), ""]
        name = by_figure.get(section.frontier.name)
        if name is not None:
            lines += [f"![{escaped(section.frontier.description)}]({name})", ""]
        lines += [*_table(section), ""]
    if "stages" in by_figure:
        first = content.first_shown()
        of = "" if first is None else f" of {code(first.name)}"
        lines += [f"### Where the memory went{of}", "", f"![by rank and stage]({by_figure['stages']})", ""]
    lines += [*_failures(content), *_gaps(content), *_words(), *_provenance(content)]
    return "\n".join(lines).rstrip() + "\n"


def _table(section: Section) -> Iterator[str]:
    """The page's own table and notes: also the rank, the stage and the forward peak that a choice hangs on."""
    columns = section.table.columns
    yield f"### {escaped(section.title)}"
    yield ""
    yield f"| {' | '.join(escaped(column.header) for column in columns)} |"
    yield f"|{'|'.join('---:' if column.right else '---' for column in columns)}|"
    for line, cells in zip(section.decision.answer.group.lines, section.table.rows, strict=True):
        control = " (control)" if line.is_control else ""
        yield f"| {' | '.join([f'{code(line.text)}{control}', *(escaped(cell) for cell in cells[1:])])} |"
    yield ""
    yield from (f"- {escaped(note)}" for note in section.notes)


def _words() -> Iterator[str]:
    yield "<details><summary>What the words mean</summary>"
    yield ""
    yield from (f"- **{escaped(word)}**: {escaped(meaning)}" for word, meaning in WORDS)
    yield ""
    yield "</details>"
    yield ""


def _decision(section: Section) -> Iterator[str]:
    decision = section.decision
    where = f" ({escaped(section.distinction)})" if section.distinction else ""
    if decision.answer.chosen is None:
        yield f"## {escaped(decision.headline)}{where}"
        yield ""
        yield from (f"- Mind: {escaped(warning)}" for warning in decision.warnings)
        yield from (f"- Mind: {escaped(verdict.text)}" for verdict in decision.answer.verdicts)
        yield from (f"- {code(name)}: {escaped(why)}" for name, why in decision.lost)
        return
    yield f"## Use {code(decision.answer.chosen.text)}{where}"
    yield ""
    yield escaped(decision.basis)
    if decision.alike is not None:
        alike = ", ".join(code(name) for name in decision.alike.names[:_MOST_ALIKE])
        more = len(decision.alike.names) - _MOST_ALIKE
        yield (
            f"The widest noise band among them, {width(decision.alike.band)} of the control's step, does not tell it "
            f"from {alike}{f' and {more} more' if more > 0 else ''}: which of these is fastest is chance until more is "
            "measured."
        )
    yield ""
    for fact in decision.facts:
        beside = f" ({escaped(fact.beside)})" if fact.beside else ""
        yield f"- {escaped(fact.name)}: **{escaped(fact.value)}**{beside}"
    if decision.runner_up is not None:
        why = escaped(reason(decision.answer, decision.runner_up))
        yield f"- Runner-up: {code(decision.runner_up.option.name)}: {why}"
    if decision.without_recompute is not None:
        why = escaped(reason(decision.answer, decision.without_recompute))
        yield f"- Why not {code(decision.without_recompute.option.name)}: {why}"
    if decision.answer.reserved_over:
        yield f"- Mind: {escaped(decision.answer.reserved_over)}"
    yield from (f"- Mind: {escaped(warning)}" for warning in decision.warnings)
    yield from (f"- Mind: {escaped(verdict.text)}" for verdict in decision.answer.verdicts)
    if decision.answer.python:
        yield from ("", *_block("python", "\n".join(decision.answer.python)))
        yield from ("", *_block("text", decision.answer.bridge))
    if decision.repeat:
        yield from (
            "",
            "To reproduce, into a results_dir of its own (where the results are known, nothing runs):",
            "",
            *_block("console", decision.repeat),
        )
    if decision.expandable:
        yield from ("", "With expandable segments:", "", *_block("console", decision.expandable))
    if decision.repeat_alike:
        yield from ("", "What the noise does not tell apart:", "", *_block("console", decision.repeat_alike))


def _block(language: str, text: str) -> list[str]:
    """A fenced block that no text in it can end."""
    fence = "`" * max(3, 1 + max((len(run) for run in _backticks(text)), default=0))
    return [f"{fence}{language}", *(plain(line) for line in text.split("\n")), fence]


def _backticks(text: str) -> list[str]:
    return [run for run in "".join(letter if letter == "`" else " " for letter in text).split() if run]


def _failures(content: Content) -> Iterator[str]:
    every = [one for section in content.sections for one in section.shown if one.kind in (MEMORY, FAILED, REFUSED)]
    if every:
        yield "### What stopped, and why"
        yield ""
    for one in every[:_MOST_FAILURES]:
        said = one.row.outcome_text or one.row.label or "no outcome"
        why = f": {escaped(one.row.evidence[0][:_LONGEST_LINE])}" if one.row.evidence else ""
        yield f"- {code(one.name)}: **{escaped(said)}**, {escaped(one.place)}{why}"
    if len(every) > _MOST_FAILURES:
        yield f"- and {len(every) - _MOST_FAILURES} more"
    if every:
        yield ""


def _gaps(content: Content) -> Iterator[str]:
    if content.gaps:
        yield "### What was not measured"
        yield ""
        yield from (f"- {escaped(gap.what)} {_of(gap)}" for gap in content.gaps)
        yield ""


def _of(gap: Gap) -> str:
    more = f" and {gap.more} more" if gap.more else ""
    return ", ".join(code(name) for name in gap.names) + more if gap.names else escaped(gap.of)


def _provenance(content: Content) -> Iterator[str]:
    for section in content.sections[:1]:
        yield "<details><summary>How we know</summary>"
        yield ""
        yield from (f"- {escaped(name)}: {escaped(value)}" for name, value in section.provenance)
        yield ""
        yield "</details>"
