"""Which rank a process is, from what a launcher or Slurm says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.records.spec import TrialSpec
from orchestrator.trial.place import Place, PlaceError, child_environment, first_host, place_of

SPEC = TrialSpec("t", "001", "mcore_cpu", 4, {}, "/r", "/b", (1, 2), 2)
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SLURM = {
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
    "SLURM_LAUNCH_NODE_IPADDR": "192.168.0.9",
    "MASTER_PORT": "15000",
}


def test_the_launcher_says_it() -> None:
    assert place_of(TORCHRUN, SPEC) == Place(3, 4, 1, "10.0.0.1", 29500)


def test_slurm_says_it_where_no_launcher_does() -> None:
    assert place_of(SLURM, SPEC) == Place(2, 4, 0, "gpu03", 15000)


def test_the_launcher_wins_over_slurm_as_a_whole() -> None:
    assert place_of({**SLURM, **TORCHRUN}, SPEC) == Place(3, 4, 1, "10.0.0.1", 29500)


def test_half_of_each_is_refused() -> None:
    with pytest.raises(PlaceError, match="WORLD_SIZE is not set"):
        place_of({**SLURM, "RANK": "1"}, SPEC)


def test_the_rendezvous_may_stand_in_the_specification() -> None:
    spec = replace(SPEC, environment={"MASTER_ADDR": "node1", "MASTER_PORT": "15001"})
    without = {key: value for key, value in SLURM.items() if key != "MASTER_PORT"}
    assert place_of(without, spec) == Place(2, 4, 0, "node1", 15001)


def test_a_slurm_step_without_a_port_gets_one_that_its_ranks_agree_on() -> None:
    without = {key: value for key, value in SLURM.items() if key != "MASTER_PORT"}
    ports = set()
    for job, step in (("100", "0"), ("100", "1"), ("101", "0"), ("101", "1")):
        step_variables = {**without, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step}
        one, other = (place_of({**step_variables, "SLURM_PROCID": rank}, SPEC).master_port for rank in ("0", "3"))
        assert one == other
        assert 15_000 <= one < 32_768
        ports.add(one)
    assert len(ports) == 4


def test_no_port_and_no_slurm_job_is_refused() -> None:
    with pytest.raises(PlaceError, match="MASTER_PORT is not set"):
        place_of({key: value for key, value in TORCHRUN.items() if key != "MASTER_PORT"}, SPEC)


def test_where_srun_was_called_is_the_last_resort() -> None:
    without = {key: value for key, value in SLURM.items() if not key.endswith("NODELIST")}
    assert place_of(without, SPEC).master_addr == "192.168.0.9"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": "x"}, "RANK is 'x', which is no number"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE is 8, but the trial asks for world_size 4"),
        ({"RANK": "4"}, "there are only 4 ranks"),
    ],
)
def test_a_contradiction_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(PlaceError, match=message):
        place_of({**TORCHRUN, **change}, SPEC)


def test_nothing_said_is_answered_with_what_to_do() -> None:
    with pytest.raises(PlaceError, match="start it with srun, or set RANK"):
        place_of({}, SPEC)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu007", "gpu007"),
        ("gpu[007-008,011],login1", "gpu007"),
        ("login1,gpu[007-008]", "login1"),
        ("gpu[11,007]", "gpu11"),
        ("rack[1-2]n[03-04]", "rack1n03"),
        ("a-b-1,a-b-2", "a-b-1"),
    ],
)
def test_the_first_host_of_a_node_list(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


def test_a_trials_variables_win_over_inherited_ones_and_the_place_over_both() -> None:
    spec = replace(SPEC, environment={"A": "trial", "RANK": "9"})
    found = child_environment(spec, Place(3, 4, 1, "h", 5), {"A": "shell", "B": "shell"})
    assert found == {"A": "trial", "B": "shell", "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"} | {
        "MASTER_ADDR": "h",
        "MASTER_PORT": "5",
    }
