"""Names and values from outside, as text: nothing in them acts on a terminal."""

from __future__ import annotations

import unicodedata
from typing import Any

_HARMFUL = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories that move a cursor, change direction, break a line, or show as nothing."""


def plain(value: Any) -> str:
    """One line of visible text: control, formatting and surrogate characters as their escapes; None as `-`."""
    if value is None:
        return "-"
    text = str(value)
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def visible_lines(text: str) -> str:
    """Lines of visible text: as `plain`, but line ends and tabs stay."""
    return "".join(one if one in "\n\t" else _visible(one) for one in text)


def _visible(character: str) -> str:
    if unicodedata.category(character) in _HARMFUL:
        return character.encode("unicode_escape", "backslashreplace").decode("ascii")
    return character


def counted(count: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
