from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measured_rows import early_failure, row
from report_rows import GB, content

from orchestrator.analysis.comparison import compare
from orchestrator.analysis.published_tables import published_rows, published_tables
from orchestrator.records.rank import IterationRecord, StageMemory
from orchestrator.report.export_markdown import escaped
from orchestrator.report.figures.frontier import kind_of
from orchestrator.report.figures.stages import SO_FAR, history, look
from orchestrator.report.page import matrix as matrix_module
from orchestrator.report.page import trials
from orchestrator.report.page.content import _recording
from orchestrator.report.page.markdown import pictures, report_markdown
from orchestrator.report.page.page import html
from orchestrator.report.page.unmeasured import gaps
from orchestrator.report.page.words import WORDS
from orchestrator.report.trial import setting_rows
from orchestrator.store.memory_map import Executed
from orchestrator.vocabulary import Stage

HOSTILE = [
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    '"><img src=x onerror="window.pwned=1">',
    "<style>*{display:none}</style>",
    "javascript:window.pwned=1",
    "' onmouseover='window.pwned=1",
    "<!--<script>",
    "]]><svg onload=window.pwned=1>",
    "{{ 7*7 }} {% raw %}",
    "\u202eevil\u2028\x1b[31m",
    "datum.constructor.constructor('window.pwned=1')()",
    "&lt;b&gt; &amp; <b>",
    "`code` | [link](javascript:alert(1)) **x**",
]


class Page(HTMLParser):
    """What a browser would make of a page: its elements, attributes and texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.scripts: list[str] = []
        self.styles: list[str] = []
        self.texts: list[str] = []
        self._inside = ""
        self._type: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        self._inside, self._type = tag, dict(attrs).get("type")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script" and self._type is None:
            self.scripts.append(data)
        elif self._inside == "style":
            self.styles.append(data)
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def attribute(self, tag: str, name: str) -> list[str | None]:
        return [value for one, called, value in self.attributes if (one, called) == (tag, name)]

    @property
    def data(self):
        return json.loads(next(text for text in self.texts if text.startswith('{"config"')))


def study():
    return [
        row(peak=80 * GB, at=Stage.BACKWARD, hot=1),
        row(["moe"], peak=50 * GB, step_ms=110.0, hot=1, at=Stage.FORWARD),
        row(["mlp"], peak=55 * GB, step_ms=120.0),
        row(["core_attn"], label="OOM-bwd", cause="device_oom", stage=Stage.REPLAY, rank=1, step_ms=None,
            last_iteration=0, peak=79 * GB, evidence=("rank 1: CUDA out of memory",)),
    ]  # fmt: skip


def test_the_decision_answers_what_to_set_what_it_costs_and_why_the_runner_up_lost():
    text = Page(html(content(study(), target_gb=60))).text
    assert (
        "Use this setting moe It is the fastest of the 2 candidates that passed with every rank's allocated peak at or "
        "below 60.000 GB" in text
    )
    assert "50.000 GB on rank 1, in forward" in text
    assert "Time against the control +10.00% noise band ±0.74%" in text
    assert "Allocated room below the target 10.000 GB" in text
    assert "Runner-up mlp : fits, but its step takes 10.00 ms longer (+9.09%)" in text
    assert "Why not recompute nothing? [] : peak 80.000 GB on rank 1 is over 60.000 GB" in text
    assert 'cfg.model.recompute_modules = ["moe"]' in text
    assert "python -m orchestrator study.name=demo" in text


def test_where_nothing_qualifies_the_page_says_so_and_names_no_setting():
    text = Page(html(content(study(), target_gb=10))).text
    assert "Nothing qualifies: no candidate passed within 10.000 GB on every rank" in text
    assert "Use this setting" not in text


def test_the_headline_minds_the_noise_and_lists_names_without_ambiguity():
    rows = [
        row(peak=80 * GB, step_scatter_ms=9.0),
        row(["moe"], peak=50 * GB, step_ms=106.0, step_scatter_ms=9.0),
        row(["layernorm", "moe"], peak=49 * GB, step_ms=108.0, step_scatter_ms=9.0),
        row(["mlp"], peak=49 * GB, step_ms=109.0, step_scatter_ms=9.0),
    ]
    made = content(rows, target_gb=60)
    text = Page(html(made)).text
    assert (
        "Its step time is the smallest of the 3 candidates that passed with every rank's allocated peak at or below "
        "60.000 GB" in text
    )
    assert (
        "the fastest" not in text[text.index("Use this setting") : text.index("What to set")].split("Not the only")[0]
    )
    assert "does not tell it from layernorm, moe mlp . Which of these is fastest is chance" in text
    assert (
        "Runner-up layernorm, moe : fits, but its step takes 2 ms longer (+2%), inside the noise band, so not "
        "measurably slower" in text
    )
    assert "Time against the control +6% no measurable effect: noise band ±13%, so anything from -7% to +19%" in text
    assert '<code class="name">layernorm, moe</code>' in html(made)
    markdown = report_markdown(made, {})
    assert "does not tell it from `layernorm, moe`, `mlp`: which of these is fastest is chance" in markdown
    assert markdown.count("is chance") == 1


def test_nothing_is_called_the_fastest_where_nobody_knows_how_times_scatter():
    made = content(published_rows("moonlight-16b"), target_gb=36)
    assert made.sections[0].decision.basis == (
        "Its step time is the smallest of the 4 candidates that passed with every rank's allocated peak at or below "
        "36.000 GB; how such times scatter is not known."
    )
    without_control = content([row(["moe"]), row(["mlp"], step_ms=150.0)])
    assert "the fastest" not in without_control.sections[0].decision.basis


def test_a_candidate_of_several_runs_has_one_peak_on_the_whole_page():
    runs = [row(peak=size, trial=f"c{number}", attempt=f"00{number}") for number, size in ((1, 60 * GB), (2, 61 * GB))]
    made = content([*runs, row(["moe"], peak=50 * GB, step_ms=140.0)])
    page = Page(html(made))
    (section,) = made.sections
    assert section.decision.facts[0].value.startswith("61.000 GB")
    assert "the largest of 2 runs" in section.decision.facts[0].beside
    headers = [column.header for column in section.table.columns]
    assert section.table.rows[0][headers.index("peak allocated (GB)")] == "61.000"
    assert section.shown[0].place.startswith("peak 61.000 GB")
    assert "60.000" not in page.text
    assert "several runs: the largest peak and the median step time of [] (2 runs)" in page.text


def test_where_recording_paused_the_chart_goes_on_with_the_runs_maximum_and_the_page_says_so():
    made = content([row(), row(["moe"])])
    comparison = compare([row(), row(["moe"])])
    executed = {
        (line.decided.trial, "001"): Executed(number, "/r", (), None)
        for number, line in enumerate(comparison.groups[0].lines)
    }
    counted = [StageMemory(Stage.FORWARD, 1, None)]
    iterations = [
        IterationRecord(
            number,
            10.0,
            peak_allocated=5 * GB,
            stages=[StageMemory(Stage.FORWARD, 1, number * GB)] if number < 4 else counted,
        )
        for number in range(1, 9)
    ]
    memory = trials.Memory(executed, {}, dict.fromkeys(range(2), iterations))
    (entries,) = trials.shown_lines(comparison.groups, [], memory)
    assert entries[0].unrecorded == ((4, 8),)
    assert (
        "Recording by stage paused in iterations 4 to 8. The dotted line is the run's maximum so far"
        in entries[0].history_about
    )
    (gap,) = [gap for gap in gaps(comparison, [entries], [[]], target_known=True) if "recording paused" in gap.what]
    assert (gap.what, gap.names) == (
        "Peaks by stage in iterations 4 to 8: recording paused there, only maxima are known.",
        ("[]", "moe"),
    )
    drawn = history("h", "h", entries[0].history)
    assert [value["iteration"] for value in drawn.spec["data"]["values"] if value["stage"] == "run so far"] == list(
        range(1, 9)
    )
    assert made.sections[0].shown[0].unrecorded == ()


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (((6, 10),), "iterations 6 to 10"),
        (((7, 7),), "iteration 7"),
        (((2, 2), (4, 4), (6, 8)), "iterations 2, 4 and 6 to 8"),
        (tuple((number, number) for number in range(2, 44, 2)), "21 iterations between 2 and 42"),
    ],
)
def test_runs_of_iterations_are_said_in_few_words(found, text):
    assert trials.spans(found) == text


def test_each_failure_has_its_place_and_its_deciding_lines():
    page = Page(html(content(study())))
    assert "stopped in replay on rank 1, after 0 iterations; cause device_oom" in page.text
    assert "rank 1: CUDA out of memory" in page.text
    stopped = [
        point
        for layer in page.data["figures"]["frontier-0"]["layer"]
        if layer.get("name") == "stopped"
        for point in layer["data"]["values"]
    ]
    assert [(point["name"], point["peak"], point["label"]) for point in stopped] == [("core_attn", 79.0, "OOM-bwd")]


def test_the_page_says_what_was_not_measured():
    text = Page(html(content([row(["moe"]), early_failure(["mlp"]), row(["moe_act"], label=None, step_ms=None)]))).text
    for said in (
        "Candidates without a result yet. moe_act",
        "Candidates that ended for a reason that says nothing of their memory. mlp",
        "A control (selective with []): what recompute costs is not known.",
        "Repeats: one run each, so scatter between runs is not known. moe",
        "A GPU: these rows were measured on a CPU.",
        "A memory target: none was given",
    ):
        assert said in text


def test_a_grid_has_an_outcome_matrix_with_gaps_where_nothing_was_asked():
    wide = {"parallelism": {"tp": 2}, "model": {"num_layers": 4}, "trainer": {"name": "mcore_cpu"}}
    other = row(["moe"], effective_model={"tensor_model_parallel_size": 2}, trial="wide")
    other = replace(other, requested=dict(other.requested) | wide)
    made = content([row(), row(["moe"]), other])
    assert made.matrix is not None
    assert {name.split(",")[0] for name in made.matrix.columns} == {"tp=2", "tp=unset"}
    cells = dict(made.matrix.rows)
    assert matrix_module._natural("tp=2, x") < matrix_module._natural("tp=16, a")
    assert [cell is None for cell in cells["[]"]].count(True) == 1
    assert all(cell is not None and cell.label == "pass" for cell in cells["moe"])


def test_every_candidate_has_its_memory_and_its_settings():
    data = Page(html(content(study()))).data
    assert len(data["candidates"]) == 4
    one = data["candidates"]["g0-0"]
    assert one["heat"] == {
        "step": 10**6,
        "stages": ["model_build", "forward", "optimizer_step"],
        "rows": [0, 1],
        "sizes": [[2000, 1000, 667], [1000, 667, 500]],
    }
    assert one["history"]["rows"] == [1, 2, 3]
    assert ["recompute_modules", "[]", "[]", False] in one["settings"]


def test_memory_of_a_large_job_is_left_out_from_its_coldest_ranks_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr(trials, "MOST_CELLS", 12)
    made = content(study(), target_gb=60)
    kept = {one.name: {cell.rank for cell in one.cells} for one in made.sections[0].shown}
    assert kept["moe"] == {0, 1}
    assert kept["mlp"] == {0}
    assert any("coldest ranks" in gap.what for gap in made.gaps)


def test_only_the_pages_own_scripts_and_style_may_run_and_nothing_is_loaded():
    page = Page(html(content(study())))
    (policy,) = [value or "" for value in page.attribute("meta", "content") if "default-src" in (value or "")]
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == "'none'"
    assert "unsafe" not in policy
    for directive, texts in (("script-src", page.scripts), ("style-src", page.styles)):
        hashes = {f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for text in texts}
        assert set(directives[directive].split()) == hashes
    assert not any(name == "src" for _, name, _ in page.attributes)
    assert all((value or "").startswith("#") for value in page.attribute("a", "href"))
    assert not any(name == "style" or name.startswith("on") for _, name, _ in page.attributes)
    assert "link" not in page.tags


def hostile_content(text: str):
    rows = [
        row(name=text, study=text, evidence=(text,), notes=(text,)),
        row([text], label="OOM-fwd", evidence=(text,), stage=Stage.FORWARD, step_ms=None, notes=(text,)),
    ]
    rows = [
        replace(
            one,
            requested=dict(one.requested) | {"model": {text: text}},
            software={text: {"version": text}},
            environment={text: text},
            device_name=text,
            outcome_text=text if one.step_ms is None else None,
        )
        for one in rows
    ]
    return content(rows, title=text, where=text)


BENIGN = Page(html(hostile_content("plain")))


@pytest.mark.parametrize("text", HOSTILE)
def test_markup_script_and_style_in_what_was_measured_stay_text(text):
    page = Page(html(hostile_content(text)))
    assert page.tags == BENIGN.tags
    assert Counter(name for _, name, _ in page.attributes) == Counter(name for _, name, _ in BENIGN.attributes)
    assert page.scripts == BENIGN.scripts
    assert page.styles == BENIGN.styles


@settings(max_examples=12, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_no_text_adds_an_element_to_the_page(text):
    page = Page(html(hostile_content(f"x{text}")))
    assert page.tags == BENIGN.tags
    assert page.scripts == BENIGN.scripts


@pytest.mark.parametrize("table", published_tables())
def test_published_tables_have_a_page_with_their_source_and_the_study_that_repeats_them(table):
    text = Page(html(content(published_rows(table)))).text
    assert "published by their source" in text
    assert re.search(r"python -m orchestrator -m study=\w+ cluster=slurm", text)


def test_markdown_has_the_decision_the_table_and_pictures_beside_it():
    made = content(study(), target_gb=60)
    shown = pictures(made, "r")
    text = report_markdown(made, shown)
    assert "## Use `moe`" in text
    assert "- Runner-up: `mlp`" in text
    (failed,) = [line for line in text.splitlines() if line.startswith("| `core_attn` |")]
    assert "| OOM-bwd" in failed
    assert "| `[]` (control) |" in text
    header = next(line for line in text.splitlines() if line.startswith("| modules |"))
    assert "peak allocated" in header
    assert "stage" in header
    assert all(f"- **{escaped(word)}**: " in text for word, _ in WORDS)
    assert [name for name in shown if f"]({name})" in text] == ["r-frontier-0.png", "r-stages.png"]
    assert shown["r-stages.png"].png().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["```\n# x", "<b>x</b>", "[a](javascript:x)", "| a | b |"])
def test_no_text_of_the_markdown_ends_its_block_or_cell(text):
    made = hostile_content(text)
    lines = report_markdown(made, {}).splitlines()
    assert "# x" not in lines
    assert not any(line.lstrip("-# |*").startswith(("<b>", "[a]")) for line in lines)


def test_a_candidate_is_of_one_kind():
    made = content(study(), target_gb=60)
    chosen = made.sections[0].decision.answer.chosen
    kinds = {one.name: kind_of(one.line, chosen) for one in made.sections[0].shown}
    assert kinds == {"[]": "control", "moe": "recommended", "mlp": "passed", "core_attn": "out of memory"}


def over_target():
    """A choice whose allocated memory fits and whose reserved memory does not, on one GPU rank, in noise."""
    gpu = {"device_kind": "cuda", "device_name": "H200", "device_capacity": 150 * GB, "world_size": 1}
    return [
        row(peak=80 * GB, at=Stage.BACKWARD, step_scatter_ms=9.0, **gpu),
        row(["moe"], peak=50 * GB, reserved=75 * GB, step_ms=106.0, step_scatter_ms=9.0, **gpu),
        row(["mlp"], peak=49 * GB, reserved=55 * GB, step_ms=109.0, step_scatter_ms=9.0, **gpu),
    ]


def test_the_decision_says_that_only_allocated_memory_fits_and_gives_one_command_against_it():
    made = content(over_target(), target_gb=60)
    text = Page(html(made)).text
    assert "with an allocated peak at or below 60.000 GB" in text
    assert "Peak reserved 75.000 GB over the target; the device has 150.000 GB" in text
    assert "Only allocated memory fits: the allocator reserved 75.000 GB, 15.000 GB over the limit" in text
    assert text.count("Only allocated memory fits") == 1
    assert "expandable_segments:True" in (made.sections[0].decision.expandable or "")
    markdown = report_markdown(made, {})
    assert "Only allocated memory fits" in markdown
    assert "With expandable segments:" in markdown
    assert "on rank" not in text[text.index("Use this setting") : text.index("What to set")]


def test_what_the_noise_does_not_tell_apart_can_be_pasted_to_run_three_times():
    made = content(over_target(), target_gb=60)
    command = made.sections[0].decision.repeat_alike or ""
    assert "study.repeats=3" in command
    assert "[mlp]" in command
    assert "[moe]" in command
    assert "mlp : fits, but its step takes 3 ms longer (+3%), inside the noise band" in Page(html(made)).text
    assert "the control: 80.000 GB in backward, so the peak moved to another stage" in Page(html(made)).text


def test_the_table_has_first_what_decides_and_no_rank_where_there_is_one():
    (section,) = content(over_target(), target_gb=60).sections
    headers = [column.header for column in section.table.columns]
    assert headers[:4] == ["modules", "step (ms)", "peak allocated (GB)", "time vs []"]
    assert "rank" not in headers
    assert "rank" in [column.header for column in content(study()).sections[0].table.columns]


def test_notes_say_how_the_noise_band_is_computed_and_what_recording_did_to_times():
    (section,) = content(over_target(), target_gb=60).sections
    (note,) = [note for note in section.notes if note.startswith("noise band")]
    assert "the standard deviation of a single run's own window" in note
    first, *others = section.shown
    said = _recording([first, *(replace(one, unrecorded=((2, 3),)) for one in others)])
    assert said == [
        "recording by stage: on while [] was timed, where it cost about 0.5% of the step or less; paused in the window "
        "of mlp; moe, whose times hold less of it."
    ]
    assert _recording(section.shown) == []


def test_the_controls_memory_stands_below_a_candidates_where_ranks_are_few():
    data = Page(html(content(study()))).data
    assert data["candidates"]["g0-1"]["heat"]["rows"] == [0, 1, "0, control", "1, control"]
    assert data["candidates"]["g0-0"]["heat"]["rows"] == [0, 1]


def test_a_stage_looks_the_same_for_every_candidate():
    looks = Page(html(content(study()))).data["looks"]
    assert {str(stage) for stage in Stage} < set(looks)
    assert len({look[0] for name, look in looks.items() if name in ("forward", "backward", "replay", SO_FAR)}) == 4
    assert look("optimizer_step")[2] > look(SO_FAR)[2]


def test_a_layer_pattern_that_means_what_was_asked_is_no_change():
    def rows(asked, became):
        return setting_rows({"model": {"moe_layer_freq": asked}}, {"model": {"moe_layer_freq": became}})

    assert rows(1, [0, 1, 1, 1]) == []
    assert rows(2, [0, 1, 0, 1]) == []
    assert len(rows(1, [0, 1, 0, 1])) == 1
    assert len(rows(1, 2)) == 1


def test_the_words_of_a_report_are_explained_in_it():
    text = Page(html(content(study()))).text
    for word in ("match key a digest", "replay the forward", "GB 1e9 bytes", "noise band how far"):
        assert word in text


def test_where_nothing_has_a_time_or_a_peak_no_empty_chart_is_drawn():
    broken = content([early_failure([]), early_failure(["moe"])])
    assert "nothing to draw" in html(broken)
    assert 'data-figure="frontier-1"' not in html(broken)
    assert not any("frontier" in name for name in pictures(broken, "r"))
    begun = content([early_failure([]), early_failure(["moe"]), row(["mlp"], label="OOM-fwd", step_ms=None)])
    assert ["nothing to draw" in html(one) for one in (begun, broken)] == [False, True]
