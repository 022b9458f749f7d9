"""Runs in MLflow: a tracking server, or a database file of one's own."""

from __future__ import annotations

import importlib
import logging
import os
import time
from typing import Any

from orchestrator.config.errors import EnvironmentFailure
from orchestrator.report.sinks.outgoing import PROGRAM, Outgoing

_ID = f"{PROGRAM}.run"
_LONGEST = 6000
"""MLflow refuses longer values of parameters (`MAX_PARAM_VAL_LENGTH`)."""


class MlflowSink:
    """One experiment a study."""

    def __init__(self, uri: str | None) -> None:
        """`uri` as for `mlflow.set_tracking_uri`; None: as MLFLOW_TRACKING_URI says.

        Raises:
            EnvironmentFailure: mlflow is not installed.
        """
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        try:
            tracking = importlib.import_module("mlflow.tracking")
            self._entities: Any = importlib.import_module("mlflow.entities")
        except ImportError as error:
            raise EnvironmentFailure(
                "MLflow is not installed: pip install 'recompute-orchestrator[mlflow]'."
            ) from error
        self._client: Any = tracking.MlflowClient(tracking_uri=uri)
        self._experiments: dict[str, str] = {}

    def send(self, run: Outgoing) -> bool:
        experiment = self._experiment(run.study or PROGRAM)
        if self._client.search_runs([experiment], filter_string=f"tags.`{_ID}` = '{run.id}'", max_results=1):
            return False
        tags = {**{f"{PROGRAM}.{name}": value for name, value in run.tags.items()}}
        made = self._client.create_run(experiment, run_name=run.name, tags=tags)
        now, entities = int(time.time() * 1000), self._entities
        metrics = [entities.Metric(name, value, now, 0) for name, value in run.metrics.items()]
        metrics += [entities.Metric("loss", loss, now, number) for number, loss in run.losses.items()]
        params = [entities.Param(name, value[:_LONGEST]) for name, value in run.settings.items()]
        for start in range(0, max(len(metrics), len(params)), 100):
            self._client.log_batch(
                made.info.run_id, metrics=metrics[start : start + 100], params=params[start : start + 100]
            )
        # Last: a run that was cut short in the middle is sent again.
        self._client.set_tag(made.info.run_id, _ID, run.id)
        self._client.set_terminated(made.info.run_id, "FINISHED" if run.tags.get("label") == "pass" else "FAILED")
        return True

    def _experiment(self, name: str) -> str:
        if name not in self._experiments:
            known = self._client.get_experiment_by_name(name)
            self._experiments[name] = known.experiment_id if known else self._client.create_experiment(name)
        return self._experiments[name]
