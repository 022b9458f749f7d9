"""What ranks could only leave on their node comes home."""

from __future__ import annotations

from pathlib import Path

from orchestrator.dispatch.gather import bring_home
from orchestrator.records import layout
from orchestrator.records.beacon import FLAG_MEASURED, BeaconWriter
from orchestrator.records.jsonfile import decode, read_json, write_json
from orchestrator.records.rank import ENDED_EXIT, ENDED_LOST, ENDED_RUNNING, RankRecord
from orchestrator.records.spec import TrialSpec
from orchestrator.vocabulary import Stage


def spec_in(tmp_path: Path) -> TrialSpec:
    for name in ("run", "beacons"):
        (tmp_path / name).mkdir(mode=0o700)
    return TrialSpec(
        trial="t",
        attempt="001",
        trainer="mcore_cpu",
        world_size=2,
        config={},
        run_dir=str(tmp_path / "run"),
        beacon_dir=str(tmp_path / "beacons"),
        steady_window=(1, 2),
        train_iters=2,
    )


def record(ended: str, rank: int = 0) -> RankRecord:
    return RankRecord("t", "001", rank, 2, rank, "host", 1.0, 2.0, ended)


def home(spec: TrialSpec, rank: int) -> RankRecord:
    return decode(RankRecord, read_json(layout.rank_file(Path(spec.run_dir), rank)))


def test_a_record_left_on_the_node_is_moved(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    write_json(layout.rank_file(Path(spec.beacon_dir), 1), record(ENDED_EXIT, 1))
    assert bring_home(spec, 2) == []
    assert home(spec, 1).ended == ENDED_EXIT
    assert not Path(spec.beacon_dir).exists()


def test_a_beacon_alone_becomes_a_record_that_says_its_rank_was_lost(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    beacon = BeaconWriter(layout.beacon_file(Path(spec.beacon_dir), 1), 2)
    beacon.at(Stage.BACKWARD, 2, 0)
    bring_home(spec, 1)
    assert (home(spec, 1).ended, home(spec, 1).local_rank) == (ENDED_LOST, 0)
    assert home(spec, 1).beacon is not None
    assert home(spec, 1).beacon.stage is Stage.BACKWARD  # type: ignore[union-attr]
    assert not layout.rank_file(Path(spec.run_dir), 0).exists(), "a rank that left nothing gets nothing"


def test_a_record_written_while_its_rank_still_ran_is_brought_up_to_date(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    write_json(layout.rank_file(Path(spec.run_dir), 0), record(ENDED_RUNNING))
    beacon = BeaconWriter(layout.beacon_file(Path(spec.beacon_dir), 0), 2)
    beacon.raise_flag(FLAG_MEASURED)
    beacon.at(Stage.CHECKPOINT_SAVE, 2, 0)
    bring_home(spec, 2)
    assert (home(spec, 0).ended, home(spec, 0).measured) == (ENDED_LOST, True)


def test_a_final_record_is_left_as_it_is(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    write_json(layout.rank_file(Path(spec.run_dir), 0), record(ENDED_EXIT))
    BeaconWriter(layout.beacon_file(Path(spec.beacon_dir), 0), 2)
    bring_home(spec, 2)
    assert home(spec, 0).ended == ENDED_EXIT


def test_a_folder_that_others_can_write_is_not_read(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    write_json(layout.rank_file(Path(spec.beacon_dir), 0), record(ENDED_EXIT))
    Path(spec.beacon_dir).chmod(0o777)
    (note,) = bring_home(spec, 2)
    assert "can be written by others" in note
    assert not layout.rank_file(Path(spec.run_dir), 0).exists()


def test_a_damaged_record_is_said_and_kept(tmp_path: Path) -> None:
    spec = spec_in(tmp_path)
    layout.rank_file(Path(spec.beacon_dir), 0).write_text("{")
    (note,) = bring_home(spec, 2)
    assert "not a JSON file" in note
    assert layout.rank_file(Path(spec.beacon_dir), 0).exists()
