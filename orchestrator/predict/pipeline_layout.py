"""A pipeline layout: which layers each stage holds, written as a string or as a list of lists."""

from __future__ import annotations

import re
from typing import Any

LETTERS = {"E": "embedding", "L": "loss", "t": "decoder", "m": "mtp"}
_WORDS = frozenset({"embedding", "loss", "encoder", "decoder", "mtp"})
_REPEATED_GROUP = re.compile(r"\(([^)]+)\)\*(\d+)")
_REPEATED_LETTER = re.compile(r"(.)\*(\d+)")
_LONGEST = 100_000


class LayoutError(ValueError):
    """A layout that cannot be read. The message says what is wrong and how it is written."""


def parse_layout(layout: Any) -> list[list[str]]:
    """Layer kinds by stage: entry `a * pp + b` is virtual stage `a` of pipeline rank `b`.

    Reads what `PipelineParallelLayerLayout.parse_str_to_list` of Megatron Core 0.16.1 reads: `Et*3|(tt|)*2,m|L`, with
    commas for the eye only; or lists of `embedding`, `decoder`, `mtp`, `loss`.

    Raises:
        LayoutError: an unknown letter or word, or another type.
    """
    if isinstance(layout, str):
        return [[LETTERS[letter] for letter in stage] for stage in _unroll(layout).split("|")]
    if isinstance(layout, (list, tuple)) and all(isinstance(stage, (list, tuple)) for stage in layout):
        return [[_word(word) for word in stage] for stage in layout]
    raise LayoutError(
        f"a pipeline layout is a string like 'Ett|ttL' or a list of lists of layer names, not {layout!r:.80}"
    )


def _unroll(layout: str) -> str:
    text = layout.replace(",", "")
    for pattern in (_REPEATED_GROUP, _REPEATED_LETTER):
        length = len(text) + sum(len(match[1]) * _times(match[2]) for match in pattern.finditer(text))
        if length > _LONGEST:
            raise LayoutError(f"the pipeline layout {layout!r:.80} unrolls to more than {_LONGEST} layers")
        text = pattern.sub(lambda match: match[1] * _times(match[2]), text)
    unknown = sorted(set(text) - set(LETTERS) - {"|"})
    if unknown:
        raise LayoutError(
            f"the pipeline layout {layout!r:.80} contains {', '.join(map(repr, unknown))}; it is written with "
            "E (embedding), t (decoder layer), m (MTP), L (loss), | between stages, and x*n or (xy)*n to repeat"
        )
    return text


def _times(digits: str) -> int:
    return int(digits) if len(digits) < 9 else _LONGEST


def _word(word: Any) -> str:
    text = word.strip().lower() if isinstance(word, str) else repr(word)
    if text not in _WORDS:
        raise LayoutError(f"{word!r:.80} in the pipeline layout is none of {', '.join(sorted(_WORDS))}")
    return text
