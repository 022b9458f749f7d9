"""Times and changes rounded to what their noise allows: exact figures stay in the tables and in JSON."""

from __future__ import annotations

from orchestrator.analysis.comparison import Line
from orchestrator.analysis.noise import NoiseBand


def milliseconds(value: float, noise: float | None) -> str:
    """A time whose last digit is no finer than a tenth of the noise. Both in ms; without a known noise, to 0.01 ms."""
    return f"{value:.{_digits(noise)}f} ms"


def share(fraction: float, noise: float | None) -> str:
    """A signed percentage, rounded likewise; what rounds to nothing has no sign. Both are fractions."""
    digits = _digits(None if noise is None else noise * 100)
    text = f"{fraction * 100:+.{digits}f}%"
    return text[1:] if not text.strip("+-0.%") else text


def width(noise: float) -> str:
    """`±17%`: the half-width of a noise band."""
    return f"±{noise * 100:.{_digits(noise * 100)}f}%" if noise >= _THIN else f"±{noise * 100:.1g}%"


_THIN = 5e-5
"""Half-widths below this would round to 0.00 %."""


def band_of(line: Line) -> NoiseBand | None:
    """The noise band of a candidate's time."""
    return line.time_delta.band if line.time_delta is not None else None


def _digits(noise: float | None) -> int:
    return 2 if noise is None or noise < 1 else 1 if noise < 10 else 0
