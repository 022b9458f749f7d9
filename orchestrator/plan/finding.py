"""What a check found about a candidate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """What a finding means for the candidate."""

    INVALID = "invalid"
    """The framework refuses it: rejected."""
    NO_EFFECT = "no effect"
    """A setting cannot act: a warning, or a rejection under `strict=true`."""
    RISKY = "risky"
    """Accepted, and likely not what was meant: a warning, or a rejection under `strict=true`."""
    OPEN = "open"
    """Cannot be judged on this machine."""
    DIFFERS = "differs"
    """The rules and the exact revision's validator disagree; the validator's word holds."""
    NOTE = "note"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Finding:
    """One sentence about a candidate: what is wrong, which setting, which value would work."""

    rule: str
    kind: Kind
    message: str
    source: str = ""
    """The framework's function or the guide's section that the rule restates."""

    def rejects(self, *, strict: bool = False) -> bool:
        """Whether a candidate with this finding must not run."""
        return self.kind is Kind.INVALID or (strict and self.kind in (Kind.NO_EFFECT, Kind.RISKY))
