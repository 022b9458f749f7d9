"""The sbatch scripts that a plan would submit, without writing a file or asking Slurm."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.dispatch.batch import Ask, BatchSettings, Controls, make_batches
from orchestrator.dispatch.slurm.checked import check_cluster
from orchestrator.dispatch.slurm.cluster import cluster_of, shape_of
from orchestrator.dispatch.slurm.parameters import job_parameters
from orchestrator.plan.candidate import group
from orchestrator.plan.plan import Plan
from orchestrator.records import layout
from orchestrator.report.text import counted


def planned_scripts(plan: Plan, results_dir: Path) -> list[tuple[str, str]]:
    """Each job's name and script, for plans of `cluster=slurm`; empty for others, and where a recipe hides the ranks.

    Batches are numbered here, since their names come from the instant of submission.

    Raises:
        UsageError: ranks that do not spread over nodes, or a setting of the cluster that cannot work.
    """
    from orchestrator.dispatch.slurm import executor

    if not plan.new or any(entry.world_size is None for entry in plan.new):
        return []
    cluster_group = dict(group(plan.new[0].request, "cluster"))
    if cluster_group.get("kind") != "slurm":
        return []
    cluster = cluster_of(cluster_group)
    check_cluster(cluster, str(results_dir))
    settings = BatchSettings(
        study=plan.study,
        results_dir=str(results_dir),
        created_at=0.0,
        launcher={"kind": "slurm", "cluster": cluster_group},
        parallel_trials=cluster.parallel_trials,
        trials_per_batch=None if plan.searched else cluster.trials_per_job,
        closing_controls=not plan.searched,
        fingerprint=plan.software,
        controls=Controls.of(plan),
    )
    scripts = []
    for number, batch in enumerate(make_batches([Ask.of(entry) for entry in plan.new], settings), start=1):
        name = f"batch-{number}"
        shape = shape_of(cluster, batch.trials[0].world_size)
        parameters = job_parameters(cluster, shape, name, parallel_trials=batch.parallel_trials)
        folder = layout.batch_dir(results_dir, name) / "submitit"
        text = executor.script(folder, cluster.python or sys.executable, parameters)
        where = f"{counted(shape.nodes, 'node')} of {counted(shape.ranks_per_node, 'rank')}"
        most = "at most " if plan.searched else ""
        title = f"{name}: {most}{counted(len(batch.trials), 'trial')}, {where}"
        scripts.append((title, text))
    return scripts
