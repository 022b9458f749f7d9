"""Which rank this process is, and where the ranks meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.records.spec import TrialSpec

_FIRST_PORT, _PORTS = 15_000, 17_000
"""Below 32768, where Linux begins to hand out ports by itself (net.ipv4.ip_local_port_range)."""


class PlaceError(ValueError):
    """The environment does not say which rank this is. The message says what is missing."""


@dataclass(frozen=True)
class Place:
    """A rank's position, and the rendezvous of its trial."""

    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int

    def environment(self) -> dict[str, str]:
        """The variables that torch and Megatron read."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
        }


def place_of(environ: Mapping[str, str], spec: TrialSpec) -> Place:
    """The place that the launcher gave this process: RANK and its kin, or Slurm's variables where RANK is absent.

    The two are never mixed: half of one and half of the other would be a wrong world. The rendezvous may also stand
    in the specification's environment; a Slurm step without a port gets one that its ranks agree on and that
    neighbouring steps and jobs do not share.

    Raises:
        PlaceError: a variable is missing or no number, or contradicts the specification.
    """
    given = {**spec.environment, **environ}
    if "RANK" in environ:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    elif "SLURM_PROCID" in environ:
        names = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")
    else:
        raise PlaceError(
            "neither RANK nor SLURM_PROCID is set, so this process cannot know which rank it is: start it with srun, "
            "or set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT"
        )
    rank, world_size, local_rank = (_number(environ, name) for name in names)
    if world_size != spec.world_size:
        raise PlaceError(f"{names[1]} is {world_size}, but the trial asks for world_size {spec.world_size}")
    if rank >= world_size:
        raise PlaceError(f"{names[0]} is {rank}, but there are only {world_size} ranks, counted from 0")
    return Place(rank, world_size, local_rank, _master_addr(given), _master_port(given))


def child_environment(spec: TrialSpec, place: Place, environ: Mapping[str, str]) -> dict[str, str]:
    """What a trainer finds: the inherited variables, over them the trial's, over all the rank's place."""
    return {**environ, **spec.environment, **place.environment()}


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: `gpu007` of `gpu[007-008,011],login1`."""
    end, depth = len(nodelist), 0
    for index, character in enumerate(nodelist):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            end = index
            break
    first = nodelist[:end].strip()
    while "[" in first:
        before, _, rest = first.partition("[")
        inside, _, after = rest.partition("]")
        first = before + inside.split(",")[0].split("-")[0] + after
    return first


def _master_addr(given: Mapping[str, str]) -> str:
    """Rank 0 runs on the step's first node; where srun was called, which may be a login node, comes last."""
    if given.get("MASTER_ADDR"):
        return given["MASTER_ADDR"]
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if given.get(name):
            return first_host(given[name])
    if given.get("SLURM_LAUNCH_NODE_IPADDR"):
        return given["SLURM_LAUNCH_NODE_IPADDR"]
    raise PlaceError("MASTER_ADDR is not set, and there is no Slurm node list to take the first node from")


def _master_port(given: Mapping[str, str]) -> int:
    if "MASTER_PORT" in given or "SLURM_JOB_ID" not in given:
        return _number(given, "MASTER_PORT")
    step = given.get("SLURM_STEP_ID", "0")
    return _FIRST_PORT + (_number(given, "SLURM_JOB_ID") * 37 + (int(step) if step.isdecimal() else 0)) % _PORTS


def _number(given: Mapping[str, str], name: str) -> int:
    text = given.get(name)
    if text is None:
        raise PlaceError(f"{name} is not set")
    if not text.isdecimal():
        raise PlaceError(f"{name} is {text!r}, which is no number")
    return int(text)
