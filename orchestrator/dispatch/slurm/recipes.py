"""Asks recipes on a node of the cluster what they mean, where this machine cannot build them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config.errors import UsageError
from orchestrator.dispatch.attempt import JOB_TIME_LIMIT
from orchestrator.dispatch.package import package_digest, rank_package
from orchestrator.dispatch.revisions import pins_of, prepare
from orchestrator.dispatch.secrecy import refuse_secrets
from orchestrator.dispatch.slurm import tied
from orchestrator.dispatch.slurm.checked import check_cluster
from orchestrator.dispatch.slurm.cluster import cluster_of
from orchestrator.dispatch.slurm.launcher import step_environment
from orchestrator.dispatch.slurm.printed import end_of_job
from orchestrator.dispatch.slurm.step import Ranks, question_command
from orchestrator.plan.candidate import canonical, group, pins
from orchestrator.plan.validator import Ended
from orchestrator.records import layout
from orchestrator.records.redact import redact_text

NAME = "orchestrator-resolve"
_FOLDER = "resolve"
_SAYS_NOTHING = re.compile(
    r"srun: (?:job \d+ |Job step aborted|launch/|Terminating|cluster configuration lacks)|"
    r"slurmstepd\S*: error: \*\*\* STEP"
)


@dataclass(frozen=True)
class RecipeNode:
    """A node as trials of a request have it: its image, setup lines, environment and pinned revisions."""

    request: str
    """The groups that decide how it is reached, as canonical JSON, so that equal ones are asked together."""
    results_dir: str
    may_start: bool = True
    """Whether a step may be started; else only kept answers count."""
    say: Callable[[str], None] = field(default=lambda text: None, compare=False)

    @classmethod
    def of(cls, request: Mapping[str, Any], results_dir: Path, **more: Any) -> RecipeNode | None:
        """The node of a request; None for one of this machine."""
        if group(request, "cluster").get("kind") == "local":
            return None
        trainer = {"environment": group(request, "trainer").get("environment") or {}}
        asked = {"cluster": group(request, "cluster"), "revisions": group(request, "revisions"), "trainer": trainer}
        return cls(canonical(asked), str(results_dir), **more)

    def key(self) -> str:
        """Of the image, what is set up in it, the pinned revisions and our own part. An image in a file that is written
        anew is another one; one by name and an environment that nothing pins are taken to stay as they are.
        """
        request = json.loads(self.request)
        cluster = cluster_of(request["cluster"])
        container = cluster.container
        said = [
            package_digest(),
            [container.kind, container.image, container.digest, _file(container.image), container.python],
            [cluster.setup, cluster.environment, cluster.rank_python or cluster.python or sys.executable],
            request["trainer"],
            pins(request),
        ]
        return "node-" + hashlib.sha256(canonical(said).encode()).hexdigest()[:24]

    def ask(self, questions: str, module: str, count: int) -> Ended:
        """Run the module on one node, on these lines; waits for the node.

        Raises:
            UsageError: a pinned revision is not there, a setting of the cluster cannot work or holds a secret, or no
                allocation is held.
            EnvironmentFailure: git or the installation fails.
        """
        if not self.may_start:
            return Ended("", "a node must be asked what the recipe means, and a dry run starts nothing")
        request = json.loads(self.request)
        cluster = cluster_of(request["cluster"])
        refuse_secrets(request)
        check_cluster(cluster, self.results_dir)
        held = cluster.kind == "here"
        if held and not os.environ.get("SLURM_JOB_ID"):
            raise UsageError(
                "cluster=here asks a recipe in the allocation that this shell holds, and SLURM_JOB_ID is not set: call "
                "`salloc` first, or give parallelism.world_size."
            )
        found = pins_of(request, self.results_dir)
        prepare(found)
        environment = {**cluster.environment, **request["trainer"]["environment"]}
        try:
            folder = Path(self.results_dir) / _FOLDER
            layout.make_private_dir(folder)
            package = rank_package(Path(self.results_dir))
            ranks = Ranks(
                name=NAME,
                spec_file=f"-{module}",
                results_dir=self.results_dir,
                package=str(package),
                python=cluster.python or sys.executable,
                port=0,
                setup_file=_setup_file(folder, cluster.setup),
                first_on_path=[pin.on_path for pin in found],
                also_mounted=[str(path) for pin in found for path in (pin.worktree, pin.repository) if path],
                environment=sorted(environment),
            )
            command = question_command(cluster, ranks, held=held)
            self.say(
                f"asking a node what {'the recipe means' if count == 1 else f'{count} configurations mean'}, "
                f"for at most {cluster.resolve_minutes} minutes once there is one (a step named {NAME})"
            )
            ended = subprocess.run(
                [sys.executable, "-I", "-S", str(tied.__file__), str(os.getpid()), *command],
                input=questions,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                env=step_environment(_outside(os.environ, held=held), environment),
                check=False,
            )
        except OSError as error:
            return Ended("", f"no step could be started ({error.strerror or error})")
        if end_of_job(ended.stderr) == JOB_TIME_LIMIT:
            limit = f"cluster.resolve_minutes={cluster.resolve_minutes}"
            return Ended(ended.stdout, f"a node could not tell within {limit}: {why_not(ended.stderr)}")
        return Ended(ended.stdout, f"a node could not tell (status {ended.returncode}): {why_not(ended.stderr)}")


def why_not(said: str) -> str:
    """The words of a failed step that tell most: the last of its program, else the first ones of Slurm. Pure."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not _SAYS_NOTHING.match(line.strip())]
    own = [line for line in lines if not line.startswith(("srun: ", "slurmstepd"))]
    chosen = own[-1:] or [line for line in lines if "fatal" in line] or lines[:3] or ["it said nothing"]
    return redact_text("; ".join(chosen))[:300]


def _setup_file(folder: Path, setup: list[str]) -> str | None:
    if not setup:
        return None
    text = "\n".join(setup) + "\n"
    path = folder / f"setup-{hashlib.sha256(text.encode()).hexdigest()[:12]}.sh"
    path.write_text(text, encoding="utf-8")
    return str(path)


def _file(image: str | None) -> list[int] | None:
    """Size and time of an image that is a file of this machine."""
    try:
        found = None if image is None else Path(image).stat()
    except OSError:
        return None
    return None if found is None else [found.st_size, found.st_mtime_ns]


def _outside(environ: Mapping[str, str], *, held: bool) -> dict[str, str]:
    """The environment in which srun asks for an allocation of its own, also from within one."""
    if held or "SLURM_JOB_ID" not in environ:
        return dict(environ)
    return {key: value for key, value in environ.items() if not key.startswith("SLURM_") or key == "SLURM_CONF"}
