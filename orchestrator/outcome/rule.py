"""A rule: what to look for in a line, and what it means."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, lru_cache
from itertools import groupby

from orchestrator.vocabulary import Cause, Stage


class Weight(IntEnum):
    """How much a finding explains, most first. A cause is never displaced by its consequences."""

    ROOT = 1
    """Explains itself."""
    SIGNAL = 2
    """A process died of a signal that nothing explains."""
    VAGUE = 3
    """An exception or exit status that no rule knows."""
    NUMBERS = 4
    """The run went on with numbers that spoil it."""
    WAITED = 5
    """Somebody waited in vain or lost a peer: the usual consequence of another rank's failure."""
    ECHO = 6
    """Ended by somebody else's decision."""


@dataclass(frozen=True, eq=False)
class Rule:
    """One wording. Rules of a catalogue are tried in order and the first that matches a line speaks for it."""

    id: str
    cause: Cause
    needles: tuple[str, ...]
    """One of these is in every line that matches: plain text, found before the pattern is tried."""
    pattern: str
    example: str
    """A real line."""
    weight: Weight = Weight.ROOT
    stage: Stage | None = None
    """Where the line itself says where."""

    def matches(self, line: str) -> bool:
        """Whether the line has this wording."""
        return any(needle in line for needle in self.needles) and _compiled(self.pattern).search(line) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def any_of(words: Iterable[str]) -> str:
    """A pattern for any of some plain words, in which a letter that begins none of them is dismissed at once."""
    groups = groupby(sorted(set(words)), key=lambda word: word[0])
    return "|".join(
        f"{re.escape(first)}(?:{'|'.join(re.escape(word[1:]) for word in group)})" for first, group in groups
    )


def first_match(rules: tuple[Rule, ...], line: str) -> Rule | None:
    """The first rule that knows the line."""
    for rule in _possible(rules, shape_of(line)) if len(line) <= SHAPED else rules:
        if rule.matches(line):
            return rule
    return None


def how_many_may_match(rules: tuple[Rule, ...], line: str) -> int:
    """How many rules can know a line; cheap, and never too few."""
    return len(_possible(rules, shape_of(line))) if len(line) <= SHAPED else len(rules)


SHAPED = 600
"""Characters up to which lines are told apart by their shape: bounds the memory of what is remembered."""
_DIGITS = re.compile(r"\d+")


def shape_of(text: str) -> str:
    """A text with all its numbers alike: a log has many lines and few shapes."""
    return _DIGITS.sub("0", text)


@lru_cache(maxsize=8192)
def _possible(rules: tuple[Rule, ...], shape: str) -> tuple[Rule, ...]:
    """The rules that can know lines of a shape: those with a needle in it, numbers apart."""
    return tuple(rule for rule in rules if any(shape_of(needle) in shape for needle in rule.needles))
