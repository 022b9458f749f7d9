"""The trainer's process: `python -m orchestrator.trial.child SPEC.json`, started by the supervisor."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from pathlib import Path

from orchestrator.records import layout
from orchestrator.records.beacon import BeaconWriter
from orchestrator.records.jsonfile import decode, read_json
from orchestrator.records.spec import TrialSpec
from orchestrator.trial.dumping import answer_by_dumping
from orchestrator.trial.meter import NullMeter
from orchestrator.trial.place import Place, child_environment, place_of
from orchestrator.trial.recorder import Recorder
from orchestrator.trial.revisions import check_revisions
from orchestrator.trial.trainer import explained, find_trainer
from orchestrator.vocabulary import Stage

EXIT_RAISED = 1
"""The status of a trainer that raised anything but SystemExit."""


def main(argv: list[str]) -> int:
    """Run the trainer of a specification and say how it ended: its exit status. Writes the beacon and the facts."""
    answer_by_dumping()
    path = Path(argv[0])
    spec = decode(TrialSpec, read_json(path), str(path))
    place = place_of(os.environ, spec)
    # The supervisor has set these already; a trainer that somebody starts by hand, to look into it, needs them too.
    os.environ.update(child_environment(spec, place, os.environ))
    recorder = make_recorder(spec, place)
    try:
        check_revisions(spec.config)
        train = find_trainer(spec.trainer)
        train(spec, recorder, place.rank, place.world_size, place.local_rank)
        recorder.rest_in(Stage.TEARDOWN)
        recorder.finished()
    except SystemExit as error:
        status = exit_status(error)
        if status == 0:
            recorder.left(error)
        else:
            traceback.print_exception(type(error), error, error.__traceback__)
            recorder.caught(error)
        return status
    except BaseException as error:  # noqa: BLE001  whatever ends a trainer belongs into its record
        return _failed(recorder, error, spec.trainer)
    return 0


def make_recorder(spec: TrialSpec, place: Place) -> Recorder:
    """The beacon, a recorder that writes to it, and the first facts."""
    beacon_dir = Path(spec.beacon_dir)
    beacon = BeaconWriter(layout.beacon_file(beacon_dir, place.rank), spec.train_iters)
    facts = layout.facts_file(beacon_dir, place.rank)
    recorder = Recorder(beacon, facts, NullMeter(), spec.steady_window)
    recorder.facts(place={"local_rank": place.local_rank, "host": platform.node(), "pid": os.getpid()})
    return recorder


def exit_status(error: SystemExit) -> int:
    """The status that Python would give the process. Text goes to stderr, as Python does it, and is a failure."""
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return EXIT_RAISED


def _failed(recorder: Recorder, error: BaseException, trainer: str) -> int:
    if isinstance(error, ModuleNotFoundError):
        better = explained(error, trainer)
        if better is not error:
            better.__cause__ = error
            error = better
    # First for a reader of the log, who sees it even where the facts cannot be written.
    traceback.print_exception(type(error), error, error.__traceback__)
    recorder.caught(error)
    return EXIT_RAISED


def _leave(status: int) -> None:
    """End at once. Threads and exit handlers of frameworks hang where another rank has failed, and nobody needs
    them here: what was measured is in the beacon."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # closed by the trainer, or the supervisor is gone: nobody is left to read it
    os._exit(status)


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except BaseException:  # noqa: BLE001  not even a full disk may leave a rank hanging in its exit handlers
        traceback.print_exc()
        code = EXIT_RAISED
    _leave(code)
