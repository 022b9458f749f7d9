"""Asks the exact revision: its own validation of many candidates, in one separate process, with answers kept.

The process is `python -m orchestrator.trial.validate`: JSON lines in, JSON lines out. It imports the Megatron Core of
the environment or checkout that is named, so this process never does.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from orchestrator.plan.answers import Answers
from orchestrator.plan.candidate import Candidate, canonical, trial_config
from orchestrator.plan.installation import Installation, installation_of
from orchestrator.plan.recipe import recipe_digest
from orchestrator.plan.subject import world_size_of
from orchestrator.plan.verdict import Revision, Verdict, revision_of
from orchestrator.predict.fields import READ
from orchestrator.records.redact import redact_text

MODULE = "orchestrator.trial.validate"
RESOLVER = "orchestrator.trial.bridge.resolve"
"""Builds the recipe itself and lets Bridge finish it: where Bridge can be imported, its word is the one that counts."""
START_SECONDS = 120.0
SECONDS_EACH = 0.25
_CRASHES = 3


@dataclass(frozen=True)
class Ended:
    """A process that answered questions: what it printed, and how it ended."""

    output: str
    reason: str


class Elsewhere(Protocol):
    """Another machine, where recipes can be built that cannot be here. Equal ones are asked together."""

    def __hash__(self) -> int: ...

    def key(self) -> str:
        """Changes whenever it could answer otherwise; names the file in which its answers are kept."""

    def ask(self, questions: str, module: str, count: int) -> Ended:
        """Run the module there on these lines."""


@dataclass(frozen=True)
class Validation:
    """Answers in the order of the candidates, and where they are from."""

    verdicts: tuple[Verdict | None, ...]
    software: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Why some or all have no answer."""
    asked: int = 0
    """Configurations that were not answered from the cache."""

    @property
    def core_version(self) -> str | None:
        """The Megatron Core that answered."""
        found = self.revision
        return found.core if found else None

    @property
    def revision(self) -> Revision | None:
        """What the rules should restate to be comparable with these answers; None where nothing answered."""
        return revision_of(self.software)


def validate(
    candidates: Sequence[Candidate],
    installation: Installation | None = None,
    *,
    elsewhere: Callable[[Mapping[str, Any]], Elsewhere | None] = lambda request: None,
    cache_dir: Path | None = None,
    timeout: float | None = None,
) -> Validation:
    """The exact revision's verdict on each candidate; equal configurations are asked once.

    Args:
        installation: who is asked about all of them; by default whatever each request pins, else what is installed.
        elsewhere: finds, for a request, where to ask a recipe that leaves the number of ranks open and that cannot be
            built here; None for nowhere.
        cache_dir: where answers are kept; None uses the user's cache folder.
        timeout: seconds for one process; by default two minutes for its imports and 0.25 s a configuration.

    Never raises for a bad candidate or a missing framework: verdicts are None then, and `notes` say why.
    """
    folder = cache_dir or default_cache_dir()
    verdicts: list[Verdict | None] = [None] * len(candidates)
    software: Mapping[str, Any] = {}
    notes: list[str] = []
    asked = 0
    for (place, doubt, module), indices in _by_place(candidates, installation, elsewhere).items():
        answers = _validate([candidates[index] for index in indices], place, module, folder, timeout)
        for index, verdict in zip(indices, answers.verdicts, strict=True):
            verdicts[index] = _doubted(verdict, doubt)
        if not software or place == Installation():
            software = answers.software
        notes += [note for note in answers.notes if note not in notes]
        asked += answers.asked
    return Validation(tuple(verdicts), software, tuple(notes), asked)


def _by_place(
    candidates: Sequence[Candidate],
    installation: Installation | None,
    elsewhere: Callable[[Mapping[str, Any]], Elsewhere | None],
) -> dict[tuple[Installation | Elsewhere, str | None, str], list[int]]:
    groups: dict[tuple[Installation | Elsewhere, str | None, str], list[int]] = {}
    bridges: dict[Installation, bool] = {}
    for index, candidate in enumerate(candidates):
        place, doubt = (installation, None) if installation is not None else installation_of(candidate.request)
        if candidate.trainer == "bridge" and place not in bridges:
            bridges[place] = place.has_bridge()
        module = RESOLVER if candidate.trainer == "bridge" and bridges[place] else MODULE
        chosen: tuple[Installation | Elsewhere, str | None, str] = (place, doubt, module)
        if candidate.trainer == "bridge" and not bridges[place] and world_size_of(candidate.request) is None:
            other = elsewhere(candidate.request)
            chosen = chosen if other is None else (other, None, RESOLVER)
        groups.setdefault(chosen, []).append(index)
    return groups


def _doubted(verdict: Verdict | None, doubt: str | None) -> Verdict | None:
    if verdict is None or doubt is None:
        return verdict
    return replace(verdict, open=(*verdict.open, doubt))


def _validate(
    candidates: Sequence[Candidate],
    place: Installation | Elsewhere,
    module: str,
    cache_dir: Path,
    timeout: float | None,
) -> Validation:
    digests = [_digest(candidate, module) for candidate in candidates]
    questions = dict(zip(digests, candidates, strict=True))
    cache = Answers.open(cache_dir, place.key())
    missing = {digest: candidate for digest, candidate in questions.items() if digest not in cache.by_digest}
    notes: list[str] = []
    if missing:
        notes += _ask(missing, place, module, cache, timeout)
        notes += cache.save()
    return Validation(tuple(map(cache.verdict, digests)), cache.software, tuple(notes), asked=len(missing))


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/recompute-orchestrator/validation`, with `~/.cache` where the variable is unset."""
    home = os.path.expanduser("~")  # noqa: PTH111  pathlib raises for a user without an entry, as in a container
    base = os.environ.get("XDG_CACHE_HOME") or str(Path("/nonexistent" if home == "~" else home) / ".cache")
    return Path(base) / "recompute-orchestrator" / "validation"


def _ask(
    missing: Mapping[str, Candidate],
    place: Installation | Elsewhere,
    module: str,
    cache: Answers,
    timeout: float | None,
) -> list[str]:
    """Fill the cache with answers; a candidate on which the process dies has none, and the rest is asked again."""
    waiting = dict(missing)
    notes: list[str] = []
    for _ in range(_CRASHES):
        before = len(waiting)
        ended = _run(waiting, place, module, timeout)
        for digest, answer in _answers(ended.output):
            if waiting.pop(digest, None) is not None:
                cache.add(digest, answer)
        if not waiting:
            return notes
        if len(waiting) == before:
            return [*notes, f"{_counted(waiting)} could not be checked by the framework: {ended.reason}"]
        suspect = next(iter(waiting))
        notes.append(f"the framework's validation of {waiting.pop(suspect).name} ended the process: {ended.reason}")
        if not waiting:
            return notes
    return [*notes, f"{_counted(waiting)} not checked by the framework, after {_CRASHES} such ends"]


def _counted(waiting: Mapping[str, Candidate]) -> str:
    return "1 configuration" if len(waiting) == 1 else f"{len(waiting)} configurations"


def _run(
    waiting: Mapping[str, Candidate], place: Installation | Elsewhere, module: str, timeout: float | None
) -> Ended:
    lines = "".join(_question(digest, candidate) + "\n" for digest, candidate in waiting.items())
    if not isinstance(place, Installation):
        return place.ask(lines, module, len(waiting))
    limit = timeout if timeout is not None else START_SECONDS + SECONDS_EACH * len(waiting)
    try:
        ended = subprocess.run(
            [place.python, "-W", "ignore", "-m", module],
            input=lines,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            env=place.environment(),
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        output = late.output.decode(errors="replace") if isinstance(late.output, bytes) else (late.output or "")
        return Ended(output, f"it took longer than {limit:.0f} s")
    except OSError as error:
        return Ended("", f"{place.python} could not be started ({error.strerror or error})")
    return Ended(ended.stdout, why_it_ended(ended.returncode, ended.stderr))


def why_it_ended(status: int, said: str) -> str:
    """What a framework's process says of its end, or what to do where that is known. Pure."""
    if "huggingface.co" in said and "connect" in said.lower():
        return (
            "the recipe asks huggingface.co for the model's configuration, and it could not be reached: give its "
            "shapes as model.huggingface_config, or set HF_HOME to a cache that has them and HF_HUB_OFFLINE=1"
        )
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
    return f"exit status {status}, {redact_text(last.strip())[:300]}"


def _question(digest: str, candidate: Candidate) -> str:
    question = {
        "id": digest,
        "trainer": candidate.trainer,
        "config": trial_config(candidate.request),
        "world_size": world_size_of(candidate.request),
    }
    return json.dumps(question, default=str)


def _answers(output: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Answers among whatever else an import may have printed."""
    for line in output.splitlines():
        if line.startswith("{"):
            try:
                answer = json.loads(line)
            except ValueError:
                continue
            if isinstance(answer, dict) and isinstance(answer.get("id"), str) and isinstance(answer.get("ok"), bool):
                yield answer["id"], answer


def _digest(candidate: Candidate, module: str) -> str:
    asked = [module, candidate.trainer, trial_config(candidate.request), world_size_of(candidate.request)]
    if module == RESOLVER:  # a release that predicts from more settings asks again
        asked.append({section: sorted(names) for section, names in READ.items()} | {"estimate": ["bytes"]})
        asked.append(recipe_digest(candidate.request))
    return hashlib.sha256(canonical(asked).encode()).hexdigest()[:32]
