"""Batch and sequence: what must divide what, and the schedule's own demands on micro-batches."""

from __future__ import annotations

from orchestrator.plan.finding import Kind
from orchestrator.plan.rules.rule import Judge, Rule, divisors, near
from orchestrator.plan.subject import Subject, UnknownFieldError


def data_parallel_size(subject: Subject) -> int:
    """World size over tp x pp x cp, as `parallel_state.initialize_model_parallel` has it.

    Raises:
        UnknownFieldError: a factor is unknown, or they do not divide.
    """
    ranks = subject.positive("world_size")
    model_size = model_ranks(subject)
    if ranks % model_size:
        raise UnknownFieldError("data parallel size")
    return ranks // model_size


def model_ranks(subject: Subject) -> int:
    """tp x pp x cp: the ranks that one copy of the model takes."""
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    tp, pp, cp = (subject.positive(name) for name in sizes)
    return tp * pp * cp


def micro_batches(subject: Subject) -> int:
    """Micro-batches of one step on one data-parallel rank.

    Raises:
        UnknownFieldError: a size is unknown, or they do not divide.
    """
    step = subject.positive("micro_batch_size") * data_parallel_size(subject)
    whole = subject.positive("global_batch_size")
    if whole % step:
        raise UnknownFieldError("micro-batches")
    return whole // step


def _batch_divides(subject: Subject) -> str | None:
    whole, micro = subject.positive("global_batch_size"), subject.positive("micro_batch_size")
    replicas = data_parallel_size(subject)
    step = micro * replicas
    if whole % step == 0:
        return None
    around = [multiple for multiple in (whole // step * step, (whole // step + 1) * step) if multiple > 0]
    micros = divisors(whole // replicas) if whole % replicas == 0 else []
    fix = f"nearest training.global_batch_size: {near(whole, around)}"
    if micros:
        fix += f"; or training.micro_batch_size: {near(micro, micros)}"
    return (
        f"training.global_batch_size={whole} is no multiple of training.micro_batch_size={micro} times the "
        f"{replicas} data-parallel rank{'s' if replicas > 1 else ''} ({step}); {fix}"
    )


def _window(subject: Subject) -> str | None:
    window, iterations = subject["steady_window"], subject.positive("train_iters")
    if window is None:
        return None
    if len(window) != 2 or not all(isinstance(item, int) and not isinstance(item, bool) for item in window):
        return (
            f"training.steady_window is {window!r:.60}, but it must be the first and last iteration, such as [11, 20]"
        )
    first, last = window
    if 1 <= first <= last <= iterations:
        return None
    if first > last or first < 1:
        return f"training.steady_window=[{first}, {last}] is empty: it must hold 1 <= first <= last, counted from 1"
    return (
        f"training.steady_window=[{first}, {last}] ends after the last iteration ({iterations}): set "
        f"training.train_iters to {last} or more, or end the window at {iterations}"
    )


def _window_from_first(subject: Subject) -> str | None:
    window = subject["steady_window"]
    if not window or window[0] not in (1, 2) or len(window) != 2:
        return None
    return (
        f"training.steady_window starts at iteration {window[0]}, where buffers and optimizer state are still being "
        "allocated: start at 3 or later for a steady step time"
    )


def _sequence_by_context(subject: Subject) -> str | None:
    length, cp = subject.positive("seq_length"), subject.positive("context_parallel_size")
    if cp == 1 or length % (2 * cp) == 0:
        return None
    return (
        f"training.seq_length={length} is no multiple of 2 x parallelism.cp={cp} ({2 * cp}): nearest "
        f"{near(length, _multiples(length, 2 * cp))}"
    )


def _sequence_by_tensor(subject: Subject) -> str | None:
    if not subject["sequence_parallel"]:
        return None
    length, tp = subject.positive("seq_length"), subject.positive("tensor_model_parallel_size")
    cp = subject.positive("context_parallel_size")
    if length % (tp * cp) == 0:
        return None
    return (
        f"training.seq_length={length} is no multiple of tp x cp ({tp * cp}), over which sequence_parallel splits it: "
        f"nearest {near(length, _multiples(length, tp * cp))}"
    )


def _interleaved_micro_batches(subject: Subject) -> str | None:
    vpp = subject.given_integer("virtual_pipeline_model_parallel_size")
    pp = subject.positive("pipeline_model_parallel_size")
    if vpp is None or pp == 1:
        return None
    count = micro_batches(subject)
    if count % pp == 0:
        return None
    step = subject.positive("micro_batch_size") * data_parallel_size(subject) * pp
    return (
        f"the interleaved schedule (parallelism.vpp) needs micro-batches in whole groups of parallelism.pp={pp}, and a "
        f"step has {count}: nearest training.global_batch_size "
        f"{near(subject.positive('global_batch_size'), _multiples(subject.positive('global_batch_size'), step))}"
    )


def _multiples(value: int, step: int) -> list[int]:
    return [multiple for multiple in (value // step * step, (value // step + 1) * step) if multiple > 0]


RULES = (
    Rule(
        "batch-divides",
        Kind.INVALID,
        Judge.RUN,
        "num_microbatches_calculator.ConstantNumMicroBatchesCalculator",
        _batch_divides,
    ),
    Rule("steady-window", Kind.INVALID, Judge.RUN, "guide, Measurement Contract", _window),
    Rule("steady-window-early", Kind.RISKY, Judge.GUIDE, "guide, Measurement Contract", _window_from_first),
    Rule("sequence-context-parallel", Kind.INVALID, Judge.RUN, "Bridge ConfigContainer.validate", _sequence_by_context),
    Rule(
        "sequence-parallel-length",
        Kind.INVALID,
        Judge.RUN,
        "tensor_parallel.mappings._split_along_first_dim",
        _sequence_by_tensor,
    ),
    Rule(
        "interleaved-micro-batches",
        Kind.INVALID,
        Judge.RUN,
        "forward_backward_pipelining_with_interleaving",
        _interleaved_micro_batches,
    ),
)
