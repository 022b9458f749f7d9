"""What a cluster's configuration says, and the shape of an allocation. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.config.errors import UsageError
from orchestrator.config.schema import Container, SlurmCluster


@dataclass(frozen=True)
class Shape:
    """How a trial's ranks lie on nodes."""

    nodes: int
    ranks_per_node: int

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node


def cluster_of(group: Mapping[str, Any]) -> SlurmCluster:
    """The `cluster` group of a request, or of a batch's launcher; keys of a newer release are ignored."""
    known = {field.name for field in dataclasses.fields(SlurmCluster)}
    given = {key: value for key, value in group.items() if key in known}
    words = {field.name for field in dataclasses.fields(Container)}
    container = {key: value for key, value in (group.get("container") or {}).items() if key in words}
    return SlurmCluster(**{**given, "container": Container(**container)})


def shape_of(cluster: SlurmCluster, world_size: int) -> Shape:
    """Nodes and ranks a node of a trial: one rank a GPU, nodes filled up, or `cluster.nodes` of them.

    Raises:
        UsageError: the ranks do not spread evenly, or do not fit.
    """
    if cluster.gpus_per_node < 1:
        raise UsageError(
            f"cluster.gpus_per_node must be at least 1, not {cluster.gpus_per_node}: it says how many ranks a node "
            "holds, also where cluster.gpu_option is none."
        )
    nodes = cluster.nodes or -(-world_size // cluster.gpus_per_node)
    if world_size % nodes:
        raise UsageError(
            f"{world_size} ranks do not spread evenly over {nodes} nodes of {cluster.gpus_per_node} GPUs: change "
            "parallelism.world_size, cluster.gpus_per_node or cluster.nodes."
        )
    if world_size // nodes > cluster.gpus_per_node:
        raise UsageError(
            f"{world_size} ranks on cluster.nodes={nodes} are {world_size // nodes} a node, and a node has "
            f"cluster.gpus_per_node={cluster.gpus_per_node}."
        )
    return Shape(nodes, world_size // nodes)


def gpu_flag(cluster: SlurmCluster) -> dict[str, str]:
    """Whole-node GPUs as this site spells them, without dashes; empty where it wants none."""
    if cluster.gpu_option == "none":
        return {}
    if cluster.gpu_option == "gres":
        return {"gres": f"gpu:{cluster.gpus_per_node}"}
    return {"gpus-per-node": str(cluster.gpus_per_node)}


def local_dir(cluster: SlurmCluster) -> str:
    """The node-local folder for beacons and caches: inside a container it must be one that the host sees too."""
    return cluster.local_dir or "/tmp"
