"""`python -m orchestrator.trial SPEC.json`: the supervisor of one rank.

Which rank it is stands in RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, or in Slurm's variables. With
ORCHESTRATOR_PARENT_DEATH set, it ends when whoever started it ends: to 1, or to the process id of the starter, which
also covers one that ended before this line was reached. Exit statuses: orchestrator/records/exitstatus.py.
"""

import signal

# Somebody may ask us to end before we can answer: the signal then waits until Signals listens.
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))

import os  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
from pathlib import Path  # noqa: E402

from orchestrator.records import exitstatus  # noqa: E402
from orchestrator.records.jsonfile import FormatError, decode, read_json  # noqa: E402
from orchestrator.records.spec import TrialSpec  # noqa: E402
from orchestrator.trial.place import PlaceError, place_of  # noqa: E402
from orchestrator.trial.process import die_with_parent, kill_descendants  # noqa: E402
from orchestrator.trial.supervisor import supervise  # noqa: E402


def main(argv: list[str]) -> int:
    if argv in (["-h"], ["--help"]):
        print(__doc__)
        return exitstatus.EXIT_OK
    if len(argv) != 1 or argv[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return exitstatus.EXIT_USAGE
    spec_file = Path(argv[0])
    try:
        spec = decode(TrialSpec, read_json(spec_file), str(spec_file))
        place = place_of(os.environ, spec)
    except (FormatError, PlaceError, OSError) as error:
        print(f"orchestrator.trial: {error}", file=sys.stderr)
        return exitstatus.EXIT_USAGE
    _follow_parent(os.environ.get("ORCHESTRATOR_PARENT_DEATH"))
    try:
        return supervise(spec, spec_file, place)
    except BaseException:  # noqa: BLE001  a fault of ours must not leave a trainer behind
        traceback.print_exc()
        kill_descendants(time.monotonic() + 1.0)
        return exitstatus.EXIT_NO_RECORD


def _follow_parent(wish: str | None) -> None:
    """Have the kernel ask us to end when our parent's thread ends."""
    if not wish or wish == "0":
        return
    die_with_parent(signal.SIGTERM)
    if wish.isdecimal() and int(wish) > 1 and os.getppid() != int(wish):
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
