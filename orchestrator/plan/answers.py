"""What the framework answered before, kept in the user's cache so that it is asked once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.plan.candidate import canonical
from orchestrator.plan.verdict import Verdict
from orchestrator.predict.fields import only_read
from orchestrator.records.jsonfile import FormatError, read_json, write_json
from orchestrator.records.layout import make_private_dir

_KEPT = 50_000
_ANSWER = ("ok", "message", "open", "resolved", "estimate")
_RECOMPUTE = ("recompute_granularity", "recompute_modules", "recompute_method", "recompute_num_layers")


@dataclass
class Answers:
    """The answers of one installation, kept in one file; whatever cannot be read or written is only asked again."""

    path: Path
    by_digest: dict[str, dict[str, Any]] = field(default_factory=dict)
    software: dict[str, Any] = field(default_factory=dict)
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Finished configurations but for their recompute settings, which is most of what a study's candidates share."""

    @classmethod
    def open(cls, folder: Path, key: str) -> Answers:
        """What is kept for the installation of that key; nothing where nothing can be read."""
        path = folder / f"{key}.json"
        try:
            stored = read_json(path)
        except (OSError, FormatError):
            stored = {}
        answers = stored.get("answers") if isinstance(stored, dict) else None
        software = stored.get("software") if isinstance(stored, dict) else None
        if not isinstance(answers, dict) or not isinstance(software, dict):
            return cls(path)
        whole = {key: value for key, value in answers.items() if isinstance(value, dict) and "ok" in value}
        jobs = stored.get("jobs")
        return cls(path, whole, software, jobs if isinstance(jobs, dict) else {})

    def add(self, digest: str, answer: Mapping[str, Any]) -> None:
        """Keep an answer of the process."""
        kept = {key: answer.get(key) for key in _ANSWER}
        effective = answer.get("effective")
        # Without `resolved` it is the answer of a validation that knows no recipe: the request says all that it does.
        if isinstance(effective, Mapping) and answer.get("resolved"):
            kept |= self._keep_job(only_read({"software": answer.get("software"), **effective}))
        self.by_digest[digest] = kept
        software = answer.get("software")
        if isinstance(software, dict):
            self.software = software

    def _keep_job(self, effective: dict[str, Any]) -> dict[str, Any]:
        model = dict(effective.get("model") or {})
        recompute = {key: model.pop(key) for key in _RECOMPUTE if key in model}
        job = {**effective, "model": model}
        digest = hashlib.sha256(canonical(job).encode()).hexdigest()[:16]
        self.jobs[digest] = job
        return {"job": digest, "recompute": recompute}

    def verdict(self, digest: str) -> Verdict | None:
        """The kept answer; None where there is none."""
        answer = self.by_digest.get(digest)
        if answer is None:
            return None
        message = answer.get("message")
        opened = answer.get("open") or ()
        return Verdict(
            ok=answer["ok"] is True,
            message=str(message) if message else None,
            open=tuple(str(item) for item in opened) if isinstance(opened, list) else (),
            software=self.software,
            resolved=answer.get("resolved") or {},
            effective=self._effective(answer),
            estimate=answer.get("estimate"),
        )

    def _effective(self, answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
        job, recompute = self.jobs.get(str(answer.get("job"))), answer.get("recompute")
        if not isinstance(job, dict) or not isinstance(recompute, dict) or not isinstance(job.get("model"), dict):
            return None
        return {**job, "model": {**job["model"], **recompute}}

    def save(self) -> list[str]:
        """Write the newest answers; a sentence for the user where that fails."""
        newest = dict(list(self.by_digest.items())[-_KEPT:])
        used = {answer.get("job") for answer in newest.values()}
        jobs = {digest: job for digest, job in self.jobs.items() if digest in used}
        try:
            make_private_dir(self.path.parent)
            write_json(self.path, {"software": self.software, "answers": newest, "jobs": jobs})
        except OSError as error:
            return [f"the framework's answers could not be kept in {self.path.parent} ({error.strerror or error})"]
        return []
