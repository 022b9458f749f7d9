"""A chart: its Vega-Lite specification, and its data as a table."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import Any

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.report.figures.theme import DARK, LIGHT, coloured, config
from orchestrator.report.table import Table

VEGA_LITE = "https://vega.github.io/schema/vega-lite/v6.json"
_MIME = "application/vnd.vegalite.v5+json"
_PICTURE_WIDTH = 720


@dataclass(frozen=True)
class Figure:
    """A chart that stands on its own. Colours in `spec` are CSS variables, so that a page decides how dark it is."""

    name: str
    title: str
    spec: dict[str, Any]
    table: Table
    """The data behind it."""
    description: str = ""
    """What it shows, for those who cannot see it."""

    def vega_lite(self, *, dark: bool = False, width: int | str = _PICTURE_WIDTH) -> dict[str, Any]:
        """The whole specification with real colours, for any renderer: `altair.Chart.from_dict(figure.vega_lite())`."""
        sized = {key: value for key, value in self.spec.items() if key != "usermeta"} | {"width": width}
        framed = {
            "$schema": VEGA_LITE,
            "title": {"text": self.title, "anchor": "start"},
            "background": "var(--surface)",
            "config": config(),
            **sized,
        }
        painted: dict[str, Any] = coloured(framed, DARK if dark else LIGHT)
        return painted

    def png(self, *, dark: bool = False, scale: float = 2.0) -> bytes:
        """A picture of it.

        Raises:
            EnvironmentFailure: vl-convert is not installed.
        """
        drawn: bytes = vl_convert().vegalite_to_png(self.vega_lite(dark=dark), scale=scale)
        return drawn

    def svg(self, *, dark: bool = False) -> str:
        """A picture of it that scales.

        Raises:
            EnvironmentFailure: vl-convert is not installed.
        """
        drawn: str = vl_convert().vegalite_to_svg(self.vega_lite(dark=dark))
        return drawn

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows: the chart that answers to the mouse, or else its picture."""
        bundle: dict[str, Any] = {_MIME: self.vega_lite(), "text/plain": f"{self.title}\n{json.dumps(self.table.rows)}"}
        try:
            bundle["image/svg+xml"] = self.svg()
        except EnvironmentFailure:
            return bundle
        return bundle


def vl_convert() -> Any:
    """The library that draws Vega-Lite charts without a browser, and has its JavaScript.

    Raises:
        EnvironmentFailure: it is not installed.
    """
    try:
        return importlib.import_module("vl_convert")
    except ImportError as error:
        raise EnvironmentFailure("Charts need vl-convert: pip install 'recompute-orchestrator[report]'.") from error
