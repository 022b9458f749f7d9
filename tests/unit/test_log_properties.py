"""What must hold for any log: order between ranks, cuts, prefixes and colours."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wordings import BACKWARD, CASES, FORWARD, LAYER, OOM, OPTIMIZER, WATCHDOG, Case, iterations, prefixed, raised

from orchestrator.outcome.evidence import Outcome
from orchestrator.outcome.log import judge, read_text
from orchestrator.vocabulary import Cause, Stage

LOST = "torch.distributed.DistBackendError: NCCL error in: PG.cpp:1275, remote process exited or network error"
PREFIXES = (
    "",
    "[rank6]: ",
    "6: ",
    " 6: [rank6]: ",
    "[default6]:",
    "(Worker pid=6, ip=10.0.0.1) ",
    "[1,6]<stderr>:",
    "2025-10-22 08:39:06,123 ",
    "[2025-10-22 08:39:06] ",
    "2025-10-22T08:39:06.123456789Z stderr F ",
    "worker-6  | ",
)
CULPRITS = {
    Cause.DEVICE_OOM: (raised(OOM, *BACKWARD), Stage.BACKWARD),
    Cause.ILLEGAL_ACCESS: (
        raised("RuntimeError: CUDA error: an illegal memory access was encountered", *FORWARD, LAYER),
        Stage.FORWARD,
    ),
    Cause.STORAGE: (raised("OSError: [Errno 28] No space left on device", *OPTIMIZER), Stage.OPTIMIZER_STEP),
    Cause.UNKNOWN: (raised("RuntimeError: shapes do not match", *FORWARD, LAYER), Stage.FORWARD),
}
VICTIMS = (raised(LOST, *BACKWARD), WATCHDOG, "terminate called after throwing an instance of 'c10::DistBackendError'")


def outcome_of(text: str | bytes) -> Outcome:
    return judge([read_text(text)]).outcome


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_any_interleaving_of_ranks_gives_the_same_first_cause(data: st.DataObject) -> None:
    cause = data.draw(st.sampled_from(sorted(CULPRITS)), label="cause")
    culprit = data.draw(st.integers(0, 3), label="rank")
    text, stage = CULPRITS[cause]
    logs = [
        prefixed(f"[rank{rank}]: ", text if rank == culprit else VICTIMS[rank % 3].format(rank=rank)).splitlines()
        for rank in range(4)
    ]
    logs.append(["srun: error: node01: task 1: Exited with exit code 1", "srun: Terminating StepId=1.0"])
    lines = []
    while any(logs):
        log = data.draw(st.sampled_from([log for log in logs if log]))
        lines.append(log.pop(0))
    outcome = outcome_of("\n".join(lines))
    assert (outcome.cause, outcome.stage, outcome.rank) == (cause, stage, culprit)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_a_cut_log_never_crashes_the_reader_nor_turns_into_a_pass(case: Case) -> None:
    text = case.text.encode()
    places = range(len(text)) if len(text) < 60 else random.Random(len(text)).sample(range(len(text)), 20)
    for place in places:
        for part in (text[:place], text[place:]):
            assert outcome_of(part).label != "pass"


@pytest.mark.parametrize("case", [case for case in CASES if case.cause is not Cause.NONE], ids=lambda case: case.name)
def test_a_failure_whose_deciding_line_is_left_stays_a_failure(case: Case) -> None:
    found = judge([read_text(case.text)])
    last = max(place.line for place in found.evidence)
    kept = "\n".join(case.text.split("\n")[:last])
    assert outcome_of(kept).cause is not Cause.NONE


def dressed(text: str, prefix: str, colour: bool, ending: str) -> bytes:
    lines = [f"{prefix}\x1b[31m{line}\x1b[0m" if colour else prefix + line for line in text.split("\n")]
    return ending.join(lines).encode()


@given(
    case=st.sampled_from(CASES),
    prefix=st.sampled_from(PREFIXES),
    colour=st.booleans(),
    ending=st.sampled_from(["\n", "\r\n"]),
)
@settings(max_examples=200, deadline=None)
def test_prefixes_and_colours_change_nothing(case: Case, prefix: str, colour: bool, ending: str) -> None:
    plain, other = outcome_of(case.text), outcome_of(dressed(case.text, prefix, colour, ending))
    assert (other.cause, other.stage, other.label, other.iteration) == (
        plain.cause,
        plain.stage,
        plain.label,
        plain.iteration,
    )
    if case.rank is not None:
        assert other.rank == (case.rank if case.text.lstrip().startswith("[rank") else other.rank)


@given(st.binary(max_size=400))
def test_any_bytes_can_be_read(data: bytes) -> None:
    assert outcome_of(data).label != "pass"


@given(st.integers(0, 3), st.integers(1, 30))
def test_colours_inside_a_line_change_nothing(culprit: int, step: int) -> None:
    text = prefixed(f"[rank{culprit}]: ", raised(OOM, *BACKWARD))
    coloured = "".join(
        f"{character}\x1b[1;35m" if index % step == 0 and character != "\n" else character
        for index, character in enumerate(text)
    )
    assert outcome_of(coloured) == outcome_of(text)


def test_the_iteration_is_the_last_that_was_completed_before() -> None:
    text = f"{iterations(1, 2, 3)}\n[rank1]: {OOM}\n"
    assert (outcome_of(text).iteration, outcome_of(text).rank) == (3, 1)
    assert outcome_of(raised(OOM, LAYER)).iteration is None
