"""The verbs, what each does in one line, and the module that does it, imported only when its verb is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verb:
    """One word after `python -m orchestrator`."""

    module: str
    summary: str
    database: bool = True
    """Whether it asks a database, so that --db says which."""


VERBS: dict[str, Verb] = {
    "status": Verb("orchestrator.cli.status", "how far each study is"),
    "watch": Verb("orchestrator.cli.watch", "what runs and waits, on one screen until all has ended"),
    "logs": Verb(
        "orchestrator.cli.logs", "what a rank printed: the first that failed, or the one you name; -f follows"
    ),
    "show": Verb("orchestrator.cli.show", "one trial: what was asked, what ran, where it stopped, every rank"),
    "cancel": Verb("orchestrator.cli.cancel", "end a trial, a study or everything that runs or waits"),
    "retry": Verb("orchestrator.cli.retry", "run trials again, by label or state"),
    "compare": Verb(
        "orchestrator.cli.compare", "a study's table: peak memory, step time and deltas against the control"
    ),
    "recommend": Verb("orchestrator.cli.recommend", "the fastest candidate under a memory target, and why"),
    "diagnose": Verb("orchestrator.cli.diagnose", "what failed or did nothing, why, and what to run next"),
    "report": Verb("orchestrator.cli.report", "one page to send around, or Markdown with pictures for a pull request"),
    "export": Verb("orchestrator.cli.export", "a comparison as CSV, JSON, Parquet, Markdown or a skill card's results"),
    "send": Verb("orchestrator.cli.send", "finished trials to MLflow or Weights & Biases"),
    "import": Verb("orchestrator.cli.import_", "published tables, a results folder or another database into this one"),
    "query": Verb("orchestrator.cli.query", "SQL on documented views, and named questions"),
    "classify": Verb(
        "orchestrator.cli.classify", "what happened in a training log, also one that we did not run", False
    ),
    "labels": Verb("orchestrator.cli.labels", "which modules a revision can recompute, and what each needs", False),
    "predict": Verb("orchestrator.cli.predict", "what candidates will need, before anything runs"),
    "sbatch": Verb("orchestrator.cli.sbatch", "the exact script of a candidate's job, to be read or submitted by hand"),
    "collect": Verb("orchestrator.cli.collect", "take in records that ranks have written"),
    "db": Verb("orchestrator.cli.db", "the database: its path, and upgrading it"),
}
