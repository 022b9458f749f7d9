"""Kills by the kernel's OOM killer, as a control group counts them."""

from __future__ import annotations

from pathlib import Path

from orchestrator.trial.cgroup import oom_kills


def test_version_two_counts_in_memory_events(tmp_path: Path) -> None:
    (tmp_path / "proc").write_text("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_1\n")
    group = tmp_path / "system.slice/slurmstepd.scope/job_7/step_0/user/task_1"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert oom_kills(tmp_path / "proc", tmp_path) == 2


def test_version_one_counts_in_memory_oom_control(tmp_path: Path) -> None:
    (tmp_path / "proc").write_text("12:cpu,cpuacct:/a\n7:memory:/slurm/uid_5/job_7\n0::/\n")
    group = tmp_path / "memory/slurm/uid_5/job_7"
    group.mkdir(parents=True)
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert oom_kills(tmp_path / "proc", tmp_path) == 4


def test_no_counter_is_none_and_not_zero(tmp_path: Path) -> None:
    assert oom_kills(tmp_path / "absent", tmp_path) is None
    (tmp_path / "proc").write_text("0::/\n")
    assert oom_kills(tmp_path / "proc", tmp_path) is None
