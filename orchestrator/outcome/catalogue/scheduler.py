"""What Slurm and container runtimes say in a log."""

from __future__ import annotations

from orchestrator.outcome.rule import Rule, Weight
from orchestrator.vocabulary import Cause, Stage

SCHEDULER_RULES = (
    Rule(
        "scheduler.preempted",
        Cause.PREEMPTED,
        ("PREEMPT", "reempt", "JOB REQUEUE"),
        r"DUE TO (?:PREEMPTION|JOB REQUEUE)|\bState=PREEMPTED|\b(?:[Jj]ob|[Ii]nstance|[Nn]ode|"
        r"[Ss]tep)\b.{0,40}\bpreempted\b|"
        r"(?:[Rr]eceived|[Gg]ot|[Cc]aught|due to|by) (?:a )?preempti|[Pp]reemption (?:notice|signal|imminent|"
        r"detected)",
        "slurmstepd: error: *** JOB 32391783 ON node01 CANCELLED AT 2021-06-18T13:05:36 DUE TO PREEMPTION ***",
    ),
    Rule(
        "scheduler.node-failure",
        Cause.NODE_FAILURE,
        (
            "Node failure",
            "NODE FAILURE",
            "NODE_FAIL",
            "BOOT_FAIL",
            "NodeDiedError",
            "not responding",
            "node fail",
            "marked dead",
            "lost communication with a remote",
            "NodeNotReady",
            "NodeLost",
            "Zero Bytes were transmitted",
        ),
        r"[Nn]ode failure on|DUE TO (?:TO )?NODE FAIL|\bNODE_FAIL\b|\bBOOT_FAIL\b|NodeDiedError|"
        r"srun: error: .*\b(?:not responding|Zero Bytes were transmitted)\b|lost communication with a remote daemon|"
        r"\bNode(?:NotReady|Lost)\b|node with node id: .*marked dead",
        "salloc: error: Node failure on worker-1",
    ),
    Rule(
        "scheduler.time-limit",
        Cause.TIME_LIMIT,
        ("TIME LIMIT", "TERM_RUNLIMIT", "walltime", "time limit", "timed-out and not checkpointable"),
        r"DUE TO TIME LIMIT|TERM_RUNLIMIT|walltime \d+ exceeded|walltime.*exceeded limit|"
        r"not requeued because: timed-out|"
        r"exceeded (?:its |the )?time limit|exit_duration_in_mins.*exit",
        "slurmstepd: error: *** STEP 4226796.2 ON node01 CANCELLED AT 2025-12-03T14:53:02 DUE TO TIME LIMIT ***",
        weight=Weight.WAITED,
    ),
    Rule(
        "scheduler.submission",
        Cause.SUBMISSION,
        (
            "batch: error",
            "alloc: error",
            "srun: error: Unable to allocate",
            "job submission failed",
            "Batch job submission",
        ),
        r"Batch job submission failed|sbatch: error: |Job submit/allocate failed|Unable to allocate resources:|"
        r"salloc: error: (?:Job|Unable|Invalid)",
        "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
        stage=Stage.LAUNCH,
    ),
    Rule(
        "scheduler.prolog",
        Cause.LAUNCH,
        ("slurm task_prolog", "rolog failed", "rolog error"),
        r"Could not run slurm task_prolog|\b[Pp]rolog (?:failed|error)\b",
        "slurmstepd: error: Could not run slurm task_prolog [/etc/slurm/prolog.sh]: No such file or directory",
        stage=Stage.LAUNCH,
    ),
    Rule(
        "scheduler.container",
        Cause.LAUNCH,
        (
            *("pyxis", "enroot", "manifest unknown", "OCI runtime", "Cannot connect to the Docker", "ImagePull"),
            "Failed to pull image",
            *("pull access denied", "Error response from daemon", "FATAL:", "spank", "manifest for", "mage not found"),
        ),
        r"error: .*pyxis: |pyxis: (?:child|couldn't|failed|error)|enroot.*(?:\[ERROR\]|[Ee]rror)|manifest unknown|"
        r"OCI runtime (?:create|exec) failed|Cannot connect to the Docker daemon|(?:Err)?ImagePull(?:BackOff|"
        r"Error)?\b|"
        r"pull access denied|Failed to pull image|Error response from daemon|manifest for \S+ not found|"
        r"error: spank: required plugin|"
        r"FATAL: +(?:[Cc]ould not open image|[Uu]nable to (?:handle|pull|build)|[Ww]hile (?:making|pulling|checking)|"
        r"container creation failed|image )",
        "slurmstepd: error: pyxis: child 4242 failed with error code: 1",
        stage=Stage.LAUNCH,
    ),
    Rule(
        "scheduler.execve",
        Cause.LAUNCH,
        (
            "execve",
            "ask launch failed",
            "ask launch for",
            "xec format error",
            "cannot execute",
            "was unable to",
            "command not found",
            "Unable to create step",
            "o such file or directory",
        ),
        r"execve\(\): .*(?:No such file|Permission denied)|[Tt]ask launch (?:for \S+ )?failed|: command not found|"
        r"Unable to create step for job|[Ee]xec format error|cannot execute(?: binary file|: )|"
        r"(?:mpirun|mpiexec|prterun) was unable to|can't open file '.*': \[Errno 2\]|"
        r"^(?:/bin/|/usr/bin/)?(?:ba|da|z)?sh: .*No such file or directory",
        "slurmstepd: error: execve(): /opt/venv/bin/python: No such file or directory",
        stage=Stage.LAUNCH,
    ),
    Rule(
        "scheduler.job-cancelled",
        Cause.CANCELLED,
        ("CANCELLED",),
        r"JOB \d+ (?:ON \S+ )?CANCELLED AT|CANCELLED by \d+",
        "slurmstepd: error: *** JOB 10101 ON node01 CANCELLED AT 2024-03-01T10:00:00 ***",
        weight=Weight.ECHO,
    ),
    Rule(
        "scheduler.step-cancelled",
        Cause.CASCADE,
        ("CANCELLED AT", "Job step aborted", "forcing job termination", "srun: Terminating"),
        r"STEP \S+ (?:ON \S+ )?CANCELLED AT|Job step aborted|forcing job termination|srun: Terminating",
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
        weight=Weight.ECHO,
    ),
)
