"""The report as one HTML file that loads nothing: styles, charts and data are in it, and a policy forbids the rest.

Every text from outside passes through `plain` and Jinja's escaping; data of charts is JSON that cannot end its element.
The policy names each script and style by its hash, so that no other one runs, and leaves out `unsafe-eval`: Vega's
expressions are interpreted (vega-interpreter) rather than compiled.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.report.figures.figure import Figure, vl_convert
from orchestrator.report.figures.frontier import COLOURS, FAILED, KINDS, MEMORY, REFUSED
from orchestrator.report.figures.stages import (
    MOST_NUMBERED,
    all_looks,
    heat_map,
    heat_map_spec,
    history,
    history_spec,
    in_order,
    scale_of,
    sizes_of,
    with_control,
)
from orchestrator.report.figures.theme import DARK, LIGHT, config, style_rules
from orchestrator.report.page.content import Content
from orchestrator.report.page.decision import reason
from orchestrator.report.page.rounded import width
from orchestrator.report.page.trials import Shown
from orchestrator.report.page.words import WORDS
from orchestrator.report.text import plain
from orchestrator.vocabulary.units import format_bytes

_HERE = Path(__file__).parent
_MOST_FAILURES = 60
_MOST_FINDINGS = 40
_MOST_ALIKE = 12
_PHRASES = {
    "recommended": "are recommended",
    "control": "are the control",
    "passed": "passed",
    "out of memory": "ran out of memory",
    "failed": "failed otherwise",
    "rejected": "were rejected",
    "no outcome": "have no outcome yet",
}
_UNIT = "UNIT"
"""Stands for GB or MB in the specifications that the page fills in for the candidate that is chosen."""


def html(content: Content) -> str:
    """The page.

    Raises:
        EnvironmentFailure: the extra `report` is not installed.
    """
    template, markup = _template()
    library = _library()
    first = content.first_shown()
    heat = _heat(first)
    through = _history(first)
    every = [one for section in content.sections for one in section.shown]
    stopped = [one for one in every if one.kind in (MEMORY, FAILED, REFUSED)]
    style = _style()
    script = (_HERE / "page.js").read_text()
    kinds = [kind for kind in KINDS if any(one.kind == kind for one in every)]
    rendered: str = template.render(
        content=content,
        made=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(content.made_at)),
        recommended=[section for section in content.sections if section.decision.recommends],
        unanswered=[section for section in content.sections if not section.decision.recommends],
        forecasts=[section for section in content.sections if section.forecast is not None],
        failures=stopped[:_MOST_FAILURES],
        failures_left=max(0, len(stopped) - _MOST_FAILURES),
        most_findings=_MOST_FINDINGS,
        most_alike=_MOST_ALIKE,
        kinds=kinds,
        apart={one.key: section.distinction for section in content.sections for one in section.shown},
        phrases=_PHRASES,
        classes=dict(zip(KINDS, COLOURS, strict=True)),
        first=first,
        several_runs=any(len(one.line.runs) > 1 for one in every),
        drawn=any(section.is_drawn for section in content.sections),
        whiskers=any(layer.get("name") == "noise" for one in content.sections for layer in one.frontier.spec["layer"]),
        size=format_bytes,
        reason=reason,
        words=WORDS,
        width=width,
        heat=heat,
        history=through,
        policy=_policy([library, script], style),
        style=markup(style),
        library=markup(library),
        script=markup(script),
        data=markup(_json(_data(content, every, heat, through))),
    )
    return rendered


def _data(content: Content, every: list[Shown], heat: Figure | None, through: Figure | None) -> dict[str, Any]:
    frontiers = [section.frontier for section in content.sections if section.is_drawn]
    figures = [*frontiers]
    figures += [section.forecast for section in content.sections if section.forecast is not None]
    return {
        "config": config(),
        "looks": all_looks(),
        "most_numbered": MOST_NUMBERED,
        "figures": {figure.name: figure.spec for figure in figures},
        "filtered": [frontier.name for frontier in frontiers],
        "templates": {
            **({"heat": heat_map_spec([], 1, _UNIT, [])} if heat else {}),
            **({"history": history_spec([], _UNIT, [])} if through else {}),
        },
        "candidates": {one.key: _candidate(one) for one in every},
    }


def _candidate(one: Shown) -> dict[str, Any]:
    return {
        "name": one.name,
        "place": plain(one.place),
        "settings": one.settings,
        "heat": _grid(with_control(one.cells, one.control_cells)),
        "heat_about": one.heat_about,
        "history": _grid(sizes_of(one.history)) if one.has_history else None,
        "history_about": one.history_about,
    }


def _grid(sizes: Mapping[tuple[int, str], int] | Mapping[tuple[int | str, str], int]) -> dict[str, Any] | None:
    """Sizes by row and stage, in whole thousandths of the unit that they are shown in, so that a page stays small."""
    if not sizes:
        return None
    _, unit = scale_of(sizes.values())
    step = unit // 1000
    rows, stages = list(dict.fromkeys(row for row, _ in sizes)), in_order(stage for _, stage in sizes)
    known = {place: round(size / step) for place, size in sizes.items()}
    return {
        "step": step,
        "stages": [plain(stage) for stage in stages],
        "rows": rows,
        "sizes": [[known.get((row, stage)) for stage in stages] for row in rows],
    }


def _heat(first: Shown | None) -> Figure | None:
    return (
        heat_map("heat", "By rank and stage", first.cells, first.control_cells)
        if first is not None and first.cells
        else None
    )


def _history(first: Shown | None) -> Figure | None:
    if first is None or not first.has_history:
        return None
    return history("history", "By stage through the iterations", first.history)


def _style() -> str:
    light, dark = style_rules(LIGHT), style_rules(DARK)
    return (
        f":root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}@media print{{:root{{{light}}}}}"
        + (_HERE / "page.css").read_text()
    )


def _policy(scripts: list[str], style: str) -> str:
    allowed = " ".join(_source(script) for script in scripts)
    return f"default-src 'none'; script-src {allowed}; style-src {_source(style)}; base-uri 'none'; form-action 'none'"


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _json(value: Any) -> str:
    """JSON that stays inside its script element, whatever strings it holds."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _lines(value: Any) -> str:
    """Visible text, line by line."""
    return "" if value is None else "\n".join(plain(line) for line in str(value).split("\n"))


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed as one script."""
    bundle: str = vl_convert().javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return bundle


@cache
def _template() -> tuple[Any, Any]:
    """The template, and the type of texts that are markup already."""
    try:
        jinja, markup = importlib.import_module("jinja2"), importlib.import_module("markupsafe").Markup
    except ImportError as error:
        raise EnvironmentFailure("A report needs Jinja2: pip install 'recompute-orchestrator[report]'.") from error
    environment = jinja.Environment(
        autoescape=True,
        undefined=jinja.StrictUndefined,
        finalize=lambda value: value if isinstance(value, markup) else _lines(value),
    )
    return environment.from_string((_HERE / "page.html.jinja").read_text()), markup
