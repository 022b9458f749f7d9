"""Colours of charts and pages, by name, and what all charts look alike in.

Specifications name colours as CSS variables. A page defines them for light, dark and paper; a picture gets them filled
in. Hues are those of Okabe and Ito, which people with any colour vision tell apart; shapes say the same again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LIGHT: Mapping[str, str] = {
    "surface": "#ffffff",
    "raised": "#f6f7f9",
    "ink": "#1b1f24",
    "muted": "#57606a",
    "line": "#d0d7de",
    "faint": "#eceff2",
    "accent": "#0b5cad",
    "chosen": "#0a7d4f",
    "passed": "#0b6fb8",
    "control": "#1b1f24",
    "memory": "#c4460b",
    "failed": "#9b3f86",
    "rejected": "#7a828b",
    "target": "#b3261e",
    "s1": "#0072b2",
    "s2": "#d55e00",
    "s3": "#009e73",
    "s4": "#b0568f",
    "s5": "#a67c00",
    "s6": "#3d9ed1",
    "s7": "#6b4fa0",
    "s8": "#5f6b76",
}
DARK: Mapping[str, str] = {
    "surface": "#14181d",
    "raised": "#1d232a",
    "ink": "#e8ebee",
    "muted": "#a3adb8",
    "line": "#3a434d",
    "faint": "#262d35",
    "accent": "#6cb2f5",
    "chosen": "#3fc58c",
    "passed": "#5aaef0",
    "control": "#e8ebee",
    "memory": "#ff8a57",
    "failed": "#dd8fc9",
    "rejected": "#98a2ad",
    "target": "#ff7b72",
    "s1": "#4fb0ea",
    "s2": "#ff9350",
    "s3": "#3ecf9f",
    "s4": "#e29bc9",
    "s5": "#e2bb4a",
    "s6": "#9ad4f5",
    "s7": "#b7a0ea",
    "s8": "#a9b4be",
}
SERIES = tuple(f"var(--s{number})" for number in range(1, 9))

_VARIABLE = re.compile(r"var\(--([a-z0-9]+)\)")


def css(name: str) -> str:
    """The variable of a colour."""
    return f"var(--{name})"


def coloured(value: Any, colours: Mapping[str, str]) -> Any:
    """A specification with every variable filled in; data is left alone."""
    if isinstance(value, dict):
        return {key: item if key == "values" else coloured(item, colours) for key, item in value.items()}
    if isinstance(value, list):
        return [coloured(item, colours) for item in value]
    if isinstance(value, str) and (match := _VARIABLE.fullmatch(value)):
        return colours[match.group(1)]
    return value


def style_rules(colours: Mapping[str, str]) -> str:
    """The variables as CSS declarations."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def config() -> dict[str, Any]:
    """Vega-Lite's config for every chart."""
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
    axis = {
        "labelColor": css("muted"),
        "titleColor": css("muted"),
        "domainColor": css("line"),
        "tickColor": css("line"),
        "gridColor": css("faint"),
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "labelLimit": 220,
    }
    return {
        "font": font,
        "background": None,
        "view": {"stroke": None},
        "axis": axis,
        "legend": {
            "labelColor": css("ink"),
            "titleColor": css("muted"),
            "labelFontSize": 12,
            "titleFontSize": 12,
            "titleFontWeight": "normal",
            "symbolStrokeWidth": 2,
            "orient": "bottom",
            "columns": {"expr": "width < 480 ? 2 : 5"},
        },
        "title": {"color": css("ink"), "fontSize": 14, "subtitleColor": css("muted")},
        "text": {"color": css("ink"), "fontSize": 12},
    }
