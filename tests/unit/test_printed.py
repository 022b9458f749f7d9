"""Tracebacks as launchers, terminals, notebooks and loggers print them; and files that are no logs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from wordings import BACKWARD, OOM, iterations, prefixed, raised

from orchestrator.cli.main import main
from orchestrator.outcome.log import judge, read_logs, read_text
from orchestrator.vocabulary import Cause, Stage

ASSERT = (
    "../aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectLargeIndex: block: [37,0,0], thread: [92,0,0] "
    "Assertion `srcIndex < srcSelectDimSize` failed."
)


@pytest.mark.parametrize(
    "prefix",
    [
        "worker-1: ",
        "10.0.0.4: ",
        "n01.cluster: [rank3]: ",
        "pretrain/0 [default3]:[rank3]: ",
        "E0227 17:39:41.510000 293816 torch/distributed/elastic/multiprocessing/api.py:732] ",
        "(EngineCore_DP0 pid=12178) ERROR 12-09 16:01:05 [core.py:843] ",
        "2023-03-09T10:53:23.670-05:00\t",
        "ERROR:nemo.training:",
        "2023-04-29 06:01:12.977 [177/train/578 (pid 28936)] [09c561ee-a44c] ",
    ],
)
def test_whatever_stands_before_every_line_the_stage_is_found(prefix: str) -> None:
    outcome = judge([read_text(prefixed(prefix, raised(OOM, *BACKWARD)))]).outcome
    assert (outcome.cause, outcome.stage) == (Cause.DEVICE_OOM, Stage.BACKWARD)


def test_a_traceback_that_was_printed_as_a_list_of_strings_or_as_json_is_unfolded() -> None:
    lines = [line + "\n" for line in raised(OOM, *BACKWARD).splitlines()]
    for text in (str(lines), json.dumps({"message": "".join(lines)}), repr("".join(lines))):
        outcome = judge([read_text(f"[rank2]: {text}")]).outcome
        assert (outcome.cause, outcome.stage, outcome.rank) == (Cause.DEVICE_OOM, Stage.BACKWARD, 2), text


def test_a_box_whose_paths_are_broken_says_where() -> None:
    box = """\
│ /opt/venv/lib/python3.10/site-packages/torch/optim/adam.py                              │
│ :141 in step                                                                            │
│ ❱ 141 │   │   │   adam(                                                                  │
╰─────────────────────────────────────────────────────────────────────────────────────────╯
OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."""
    outcome = judge([read_text(box)]).outcome
    assert (outcome.cause, outcome.stage) == (Cause.DEVICE_OOM, Stage.OPTIMIZER_STEP)


def test_a_notebook_says_where() -> None:
    cell = """\
/opt/venv/lib/python3.10/site-packages/transformers/trainer.py in evaluation_loop(self, dataloader, description)
   3138                 logits = self.preprocess(logits, labels)
-> 3140                 preds = logits if preds is None else nested_concat(preds, logits, padding_index=-100)
OutOfMemoryError: CUDA out of memory. Tried to allocate 8.19 GiB."""
    assert judge([read_text(cell)]).outcome.stage is Stage.EVALUATE


def test_a_kernels_assertion_without_a_rank_happened_where_the_ranks_were() -> None:
    ranks = "\n".join(
        prefixed(f"[rank{rank}]: ", raised("RuntimeError: cut", *BACKWARD[:-1]).rpartition("\n")[0])
        for rank in range(2)
    )
    outcome = judge([read_text(f"{ASSERT}\n{ranks}")]).outcome
    assert (outcome.cause, outcome.stage) == (Cause.ILLEGAL_ACCESS, Stage.BACKWARD)


def test_where_ranks_were_says_nothing_of_what_came_from_outside() -> None:
    ranks = prefixed("[rank0]: ", raised("RuntimeError: store based barrier, timed out", *BACKWARD))
    word = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2021-03-15T18:00:46 DUE TO PREEMPTION ***"
    outcome = judge([read_text(f"{word}\n{ranks}")]).outcome
    assert (outcome.cause, outcome.stage) == (Cause.PREEMPTED, Stage.UNKNOWN)


def test_a_launchers_own_traceback_only_says_that_something_ended() -> None:
    text = """\
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 16) of binary: python
Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
  File "/opt/venv/lib/python3.8/site-packages/torch/distributed/run.py", line 794, in main
    run(args)"""
    assert judge([read_text(text)]).outcome.cause is Cause.CASCADE


def test_steps_skipped_while_the_loss_scale_settles_are_health_and_a_run_that_goes_on_skipping_is_not() -> None:
    skip = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768"
    bars = [f"  1%|      | {number}/1184 [00:21<1:09:10,  3.52s/it]" for number in range(1, 9)]
    settled = "\n".join([f"{bars[0]}{skip}", f"{bars[1]}{skip}", *bars[2:]])
    assert judge([read_text(settled)]).outcome.cause is Cause.NONE
    going_on = "\n".join(f"{bar}{skip}" for bar in bars)
    assert judge([read_text(going_on)]).outcome.cause is Cause.SKIPPED_STEPS


def test_a_document_that_speaks_of_failures_is_no_log_and_one_with_a_traceback_is_read() -> None:
    words = "# Trouble\n\n## Crashes\n\nA segmentation fault\n\n## Memory\n\nCUDA error: out of memory\n\n```\nx\n```\n"
    found = judge([read_text(words)]).outcome
    assert (found.cause, found.label, found.rules) == (Cause.UNKNOWN, None, ("log.document",))
    assert judge([read_text(words + raised(OOM, *BACKWARD))]).outcome.label == "OOM-bwd"


def test_source_code_that_names_failures_is_no_log() -> None:
    source = 'from a import b\nimport c\nimport d\n\ndef classify(text):\n    return "CUDA error: out of memory"\n'
    assert judge([read_text(source + "\n" + OOM)]).outcome.cause is Cause.UNKNOWN


def test_strings_in_a_binary_file_are_no_messages() -> None:
    library = b"\x7fELF\x02\x01\x01\x03\x04\x05\x06\x0e\x0f" * 50 + f"\n{OOM}\n".encode()
    found = judge([read_text(library)]).outcome
    assert (found.cause, found.rules) == (Cause.UNKNOWN, ("log.not-text",))


def test_a_log_that_begins_with_a_hole_is_a_log() -> None:
    assert judge([read_text(b"\0" * 100_000 + f"\n{OOM}\n".encode())]).outcome.cause is Cause.DEVICE_OOM


@pytest.mark.parametrize(("data", "said"), [(b"", "there is nothing in it"), (b"\x01\x02\x03 x", "it is binary data")])
def test_what_cannot_be_a_log_is_said_to_be_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, said: str
) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(data)
    assert main(["classify", str(path)]) == 0
    shown = capsys.readouterr().out
    assert said in shown
    assert "whole output of the ranks" in shown


def test_a_compressed_log_that_ends_too_early_says_so(tmp_path: Path) -> None:
    path = tmp_path / "job.gz"
    path.write_bytes(gzip.compress((iterations(1, 2) + "".join(map(str, range(20000)))).encode())[:-20])
    assert judge(read_logs([str(path)])).outcome.notes == (f"{path} ends in the middle of its compressed data",)
    path.write_bytes(b"\x1f\x8b")
    assert "ends in the middle" in judge(read_logs([str(path)])).outcome.notes[0]


def test_a_folder_is_answered_with_how_to_name_its_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.out").touch()
    assert main(["classify", str(tmp_path)]) == 2
    assert f"for example {tmp_path}/*.out" in capsys.readouterr().err


def test_what_repeats_is_counted_and_a_late_rank_is_still_heard() -> None:
    early = "\n".join(prefixed(f"[rank{rank}]: ", ASSERT) for rank in (0, 1) for _ in range(500))
    late = prefixed("[rank5]: ", ASSERT)
    found = judge([read_text(f"{early}\n{late}\n")]).outcome
    assert (found.rank, found.also_ranks) == (0, (1, 5))
    assert "994 further lines repeat these" in found.notes


@pytest.mark.parametrize(
    ("iteration", "cause"),
    [
        (lambda number: {"skipped": 1}, Cause.SKIPPED_STEPS),
        (lambda number: {"skipped": int(number < 31)}, Cause.NONE),
        (lambda number: {"skipped": int(number > 500)}, Cause.SKIPPED_STEPS),
        (lambda number: {"gradient": "nan"}, Cause.NON_FINITE),
        (lambda number: {"gradient": "inf" if number < 3 else "1.2"}, Cause.NONE),
        (lambda number: {"nan": int(number == 3)}, Cause.NON_FINITE),
    ],
)
def test_numbers_that_spoil_a_run_count_unless_training_went_on_without_them(
    iteration: Callable[[int], dict[str, object]], cause: Cause
) -> None:
    text = "\n".join(_progress(number, **iteration(number)) for number in range(1, 1000))
    assert judge([read_text(text)]).outcome.cause is cause


def _progress(number: int, skipped: object = 0, nan: object = 0, gradient: object = "1.0") -> str:
    return (
        f" iteration {number}/ 9000 | lm loss: 2.1E+00 | loss scale: 1.0 | grad norm: {gradient} | "
        f"number of skipped iterations:   {skipped} | number of nan iterations:   {nan} |"
    )


def test_a_notebooks_headline_names_what_its_end_would_have_said() -> None:
    cell = """\
MemoryError                               Traceback (most recent call last)
<ipython-input-7-0123456789ab> in <module>()
----> 2 scores = evaluate_all(model, batches)

<ipython-input-5-ba9876543210> in evaluate_all(model, batches)
---> 11     return scores * mask"""
    outcome = judge([read_text(cell)]).outcome
    assert (outcome.cause, outcome.stage) == (Cause.HOST_OOM, Stage.EVALUATE)


def test_a_bare_assertion_is_known_by_the_setting_that_its_source_names() -> None:
    frames = [("train.py", "main", "assert args.batch_size % len(devices) == 0")]
    assert judge([read_text(raised("AssertionError", *frames))]).outcome.cause is Cause.INVALID_CONFIG
    frames = [("train.py", "main", "assert loss.dim() == 1")]
    assert judge([read_text(raised("AssertionError", *frames))]).outcome.cause is Cause.UNKNOWN
