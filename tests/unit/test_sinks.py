from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest
from measured_rows import early_failure, row
from written_results import write_study

from orchestrator.analysis.published_tables import published_rows
from orchestrator.cli import trackers
from orchestrator.cli.main import main
from orchestrator.report.sinks.outgoing import finished, outgoing
from orchestrator.store.database import open_store
from orchestrator.store.plans import new_plan, record_plan
from orchestrator.vocabulary import Stage


@pytest.fixture
def results(tmp_path):
    write_study(tmp_path / "results", "demo", [[], ["mlp"]], batch="b1")
    return str(tmp_path / "results")


def test_only_runs_with_a_result_that_were_measured_here_are_sent():
    rows = [row(), early_failure(["mlp"]), row(["moe"], label=None), *published_rows("moonlight-16b")]
    assert [one.name for one in finished([*rows, row(["x"], label="OOM-bwd")])] == ["[]", "x"]


def test_a_run_has_its_settings_its_figures_and_where_it_ended():
    sent = outgoing(row(["moe"], label="OOM-bwd", cause="device_oom", stage=Stage.REPLAY, rank=1, step_ms=None))
    assert sent.tags["label"] == "OOM-bwd"
    assert (sent.tags["stage"], sent.tags["rank"], sent.tags["recompute"]) == ("replay", "1", "moe")
    assert sent.settings["training.seq_length"] == "64"
    assert sent.metrics["peak_allocated_bytes"] == sent.metrics["peak_allocated_bytes.forward"] == 1e9
    assert "step_ms" not in sent.metrics
    assert outgoing(row(["moe"])).id == outgoing(row(["moe"])).id


def test_mlflow_gets_each_trial_once(results, tmp_path, capsys):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    command = ["send", "demo", "--to", "mlflow", "--uri", uri, "--results", results]
    assert main(command) == 0
    assert "mlflow: 2 new, 0 known" in capsys.readouterr().out
    assert main(command) == 0
    assert "mlflow: 0 new, 2 known" in capsys.readouterr().out
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("demo").experiment_id])
    assert {run.info.run_name: run.data.metrics["peak_allocated_bytes"] for run in runs} == {
        "[]": 1_000_001.0,
        "mlp": 900_001.0,
    }
    assert all(run.data.params["model.num_layers"] == "2" for run in runs)
    assert [metric.step for metric in client.get_metric_history(runs[0].info.run_id, "loss")] == [1, 2, 3]


def test_wandb_gets_each_trial_once_without_a_network(results, tmp_path, capsys):
    command = ["send", "demo", "--to", "wandb", "--offline", "--dir", str(tmp_path / "w"), "--results", results]
    assert main(command) == 0
    assert "wandb: 2 new, 0 known" in capsys.readouterr().out
    assert len(list((tmp_path / "w" / "wandb").glob("offline-run-*/*.wandb"))) == 2
    assert main(command) == 0
    assert "wandb: 0 new, 2 known" in capsys.readouterr().out


def test_a_tracker_that_fails_fails_only_this_command(results, tmp_path, capsys):
    (tmp_path / "file").touch()
    uri = f"sqlite:///{tmp_path}/file/x.db"
    assert main(["send", "demo", "--to", "mlflow", "--uri", uri, "--results", results]) == 1
    assert "mlflow did not take all of it" in capsys.readouterr().err
    assert main(["compare", "demo", "--results", results]) == 0


def test_wandbs_files_are_kept_in_the_results_folder(results, tmp_path, monkeypatch, capsys):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["send", "demo", "--to", "wandb", "--offline", "--results", results]) == 0
    assert len(list((Path(results) / "wandb").glob("offline-run-*/*.wandb"))) == 2
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize(("tracker", "extra"), [("mlflow", "mlflow"), ("wandb", "wandb")])
def test_a_tracker_that_is_not_installed_is_named_with_its_extra(results, capsys, monkeypatch, tracker, extra):
    for name in [name for name in sys.modules if name.split(".")[0] == tracker]:
        monkeypatch.delitem(sys.modules, name)
    known = importlib.import_module
    monkeypatch.setattr(importlib, "import_module", lambda name: _absent(name, tracker) or known(name))
    assert main(["send", "demo", "--to", tracker, "--results", results]) == 1
    assert f"recompute-orchestrator[{extra}]" in capsys.readouterr().err


@pytest.fixture
def named(results):
    """A study that names MLflow, as `study.sinks=[mlflow]` leaves it."""
    with open_store(f"sqlite:///{results}/store.sqlite", write=True) as store:
        record_plan(store, Path(results), new_plan("demo", [], {"sinks": ["mlflow"]}))
    return results


@pytest.mark.parametrize("verb", ["collect", "watch"])
def test_a_study_that_names_a_tracker_is_in_it_once_collected(verb, named, monkeypatch, capsys):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main([verb, "--results", named]) == 0
    assert "note" not in capsys.readouterr().err
    uri = f"sqlite:///{named}/mlflow.db"
    assert main(["send", "demo", "--to", "mlflow", "--uri", uri, "--results", named]) == 0
    assert "mlflow: 0 new, 2 known" in capsys.readouterr().out


def test_a_tracker_that_fails_is_a_note_and_nothing_else(named, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{named}/store.sqlite/x.db")
    assert main(["collect", "--results", named, "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["new"] == 2
    assert "note: not all of demo is in mlflow: mlflow did not take all of it" in shown.err
    assert "`send demo --to mlflow` tries again" in shown.err


def test_a_colleagues_study_is_a_colleagues_to_send(named, tmp_path):
    with open_store(f"sqlite:///{named}/store.sqlite") as store:
        assert trackers.wanted(store, tmp_path / "mine") == {}
        assert trackers.wanted(store, Path(named)) == {}, "nothing of it has been collected yet"
    assert main(["status", "--results", named]) == 0
    with open_store(f"sqlite:///{named}/store.sqlite") as store:
        assert trackers.wanted(store, tmp_path / "mine") == {}
        assert trackers.wanted(store, Path(named)) == {"demo": ["mlflow"]}


def test_a_tracker_that_hangs_is_left(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(trackers, "_SECONDS", 0.2)
    known = trackers.subprocess.run
    monkeypatch.setattr(trackers.subprocess, "run", lambda command, **options: known(["/bin/sleep", "60"], **options))
    trackers.send_on({"demo": ["mlflow"]}, "sqlite:///nowhere", tmp_path)
    assert "it took longer than 0 s" in capsys.readouterr().err


def test_no_tracker_hears_of_a_study_that_names_none(results, monkeypatch):
    monkeypatch.setattr(trackers.subprocess, "run", lambda *_, **__: pytest.fail("a tracker was called"))
    assert main(["collect", "--results", results]) == 0


def test_where_wandb_keeps_its_files_is_its_own_setting_else_the_results_folder(monkeypatch, tmp_path):
    for name in ("WANDB_MODE", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    assert trackers._options("wandb", tmp_path)[-2:] == ["--dir", str(tmp_path)]
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", "/elsewhere")
    assert trackers._options("wandb", tmp_path)[-3:] == ["--offline", "--dir", "/elsewhere"]


def test_options_of_the_other_tracker_are_refused(results):
    assert main(["send", "demo", "--to", "mlflow", "--offline", "--results", results]) == 2
    assert main(["send", "demo", "--to", "wandb", "--uri", "x", "--results", results]) == 2


def _absent(name: str, tracker: str) -> None:
    if name.split(".")[0] == tracker:
        raise ImportError(name)
