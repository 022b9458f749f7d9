"""World size, nodes and widths: what must divide what for ranks to have equal shares."""

from __future__ import annotations

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.batch import model_ranks
from orchestrator.plan.rules.rule import Judge, Rule, divisors, near
from orchestrator.plan.subject import Subject

_GROUPS = "parallel_state.initialize_model_parallel"


def _world(subject: Subject) -> str | None:
    ranks, size = subject.positive("world_size"), model_ranks(subject)
    if ranks % size == 0:
        return None
    around = [multiple for multiple in (ranks // size * size, (ranks // size + 1) * size) if multiple > 0]
    return (
        f"parallelism.world_size={ranks} is no multiple of tp x pp x cp ({size}): nearest world_size "
        f"{near(ranks, around)}"
    )


def _expert_world(subject: Subject) -> str | None:
    ranks, pp = subject.positive("world_size"), subject.positive("pipeline_model_parallel_size")
    ep, tp = subject.positive("expert_model_parallel_size"), subject.positive("tensor_model_parallel_size")
    etp = subject.given_integer("expert_tensor_parallel_size") or tp
    if etp < 1 or ranks % (etp * ep * pp) == 0 or ranks % model_ranks(subject):
        return None
    fitting = [size for size in divisors(max(1, ranks // pp // etp)) if ranks % (etp * size * pp) == 0]
    return (
        f"parallelism.world_size={ranks} is no multiple of etp x ep x pp ({etp} x {ep} x {pp} = {etp * ep * pp}): "
        "nearest ep "
        f"{near(ep, fitting)}{'' if subject['expert_tensor_parallel_size'] else ', or set parallelism.etp=1'}"
    )


def _sequence_parallel(subject: Subject) -> str | None:
    if not subject["sequence_parallel"] or subject.integer("tensor_model_parallel_size") > 1:
        return None
    return "parallelism.sequence_parallel=true needs parallelism.tp of 2 or more: set it to false, or raise tp"


def _width(subject: Subject) -> str | None:
    tp = subject.positive("tensor_model_parallel_size")
    if subject.has_dense_layers:
        width = subject.given_integer("ffn_hidden_size") or 4 * subject.positive("hidden_size")
        if width % tp:
            return (
                f"model.ffn_hidden_size={width} is no multiple of parallelism.tp={tp}: nearest tp "
                f"{near(tp, divisors(abs(width)))}"
            )
    if subject.is_moe:
        etp = subject.given_integer("expert_tensor_parallel_size") or tp
        width = subject.given_integer("moe_ffn_hidden_size") or 0
        if etp > 0 and width % etp:
            return (
                f"model.moe_ffn_hidden_size={width} is no multiple of parallelism.etp={etp}: nearest etp "
                f"{near(etp, divisors(abs(width)))}"
            )
        shared = subject.given_integer("moe_shared_expert_intermediate_size") or 0
        if shared > 0 and shared % tp:
            return f"model.moe_shared_expert_intermediate_size={shared} is no multiple of parallelism.tp={tp}"
    return None


def _nodes(subject: Subject) -> str | None:
    ranks, per_node, nodes = subject.positive("world_size"), subject.gpus_per_node, subject.nodes
    if per_node is None:
        return None
    asked = nodes or -(-ranks // per_node)
    if ranks % asked == 0 and ranks // asked <= per_node:
        return None
    if nodes is not None and ranks > nodes * per_node:
        return (
            f"parallelism.world_size={ranks} needs {-(-ranks // per_node)} nodes of cluster.gpus_per_node={per_node}, "
            f"and cluster.nodes={nodes}: raise it, or leave it out"
        )
    whole = [asked * each for each in range(1, per_node + 1)]
    return (
        f"parallelism.world_size={ranks} cannot be spread evenly over {asked} nodes of "
        f"cluster.gpus_per_node={per_node}: nearest world_size {near(ranks, whole)}, or change cluster.nodes"
    )


def _tensor_over_nodes(subject: Subject) -> str | None:
    tp, per_node = subject.positive("tensor_model_parallel_size"), subject.gpus_per_node
    if per_node is None or tp <= per_node:
        return None
    return (
        f"parallelism.tp={tp} reaches over nodes of {per_node} GPUs, so every layer waits for the network: use "
        f"tp={per_node}"
    )


RULES = (
    Rule("world-size", Kind.INVALID, Judge.RUN, _GROUPS, _world),
    Rule("world-size-experts", Kind.INVALID, Judge.RUN, _GROUPS, _expert_world),
    Rule(
        "sequence-parallel-needs-tp",
        Kind.INVALID,
        Judge.CONFIG,
        "ModelParallelConfig.__post_init__",
        _sequence_parallel,
    ),
    Rule("width-tensor-parallel", Kind.INVALID, Judge.RUN, "core.utils.ensure_divisibility", _width),
    Rule("world-size-nodes", Kind.INVALID, Judge.RUN, "one task per GPU, equally many on each node", _nodes),
    Rule("tensor-parallel-over-nodes", Kind.RISKY, Judge.GUIDE, "guide, Measurement Contract", _tensor_over_nodes),
)
