"""How processes end, in the words of the kernel, the launcher and the shell."""

from __future__ import annotations

from orchestrator.outcome.rule import Rule, Weight
from orchestrator.vocabulary import Cause, Stage

PROCESS_RULES = (
    Rule(
        "process.segfault",
        Cause.CRASH,
        (
            "egmentation fault",
            "egfault",
            *("signal 11", "signal 4 ", "signal 7 ", "signal 8 "),
            "SIGSEGV",
            "Floating point exception",
            "Bus error",
            "SIGBUS",
            "double free",
            "corrupted",
            "invalid pointer",
            "Illegal instruction",
            "stack smashing",
            "Aborted",
        ),
        r"(?i:^[\W\d]*segmentation fault|: segmentation fault|segmentation fault \(\S+|\d segmentation fault|"
        r"segfault encountered|caught signal (?:4|7|8|11)\b|\bsegfault at )|[Ss]ignal 11 \(SIGSEGV\)|"
        r"(?:^|: )Floating point exception|(?:^|: )Bus error|[Ss]ignal 7 \(SIGBUS\)|double free or corruption|"
        r"(?:malloc|free)\(\): (?:corrupted|invalid)|munmap_chunk\(\): invalid pointer|(?:^|: )Illegal instruction|"
        r"stack smashing detected|corrupted size vs|"
        r": line \d+: +\d+ (?:Segmentation fault|Bus error|Illegal instruction|Floating point exception|Aborted)",
        "!!!!!!! Segfault encountered !!!!!!!",
        weight=Weight.SIGNAL,
    ),
    Rule(
        "process.worker-signal",
        Cause.CRASH,
        ("is killed by signal",),
        r"DataLoader worker \(pid.*\) is killed by signal: (?:Segmentation fault|Aborted|Illegal|Floating)",
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Aborted.",
        weight=Weight.SIGNAL,
        stage=Stage.DATA_BUILD,
    ),
    Rule(
        "process.killed",
        Cause.CRASH,
        (
            "exitcode",
            "SIG",
            "Killed",
            "exited on signal",
            "(Killed)",
            "return code = -",
            "by signal",
            "with signal",
            *("xit code", "xitcode", "xit-code", "xited with code"),
        ),
        r"exitcode *: *-(?:9|11|7|4|8)\b|return code = -(?:9|11|7|4|8)\b|died with <Signals\.SIG(?:KILL|SEGV|"
        r"BUS|FPE|ILL)|"
        r"(?:terminated|killed) (?:with|by) signal:? (?:SIG(?:KILL|SEGV|BUS|FPE|ILL)|(?:9|11|7|4|8)\b)|"
        r"[Ss]ignal 9 \(SIGKILL\) received|"
        r"exited on signal (?:9|11|7|4|8)\b|"
        r"exit(?:ed with (?:exit )?|[ -]?)code:? \(?(?:137|139|-(?:9|11|7|4|8))\b|"
        r"tasks? [\d,-]+: (?:Killed|Segmentation fault|Bus error)|: line \d+: +\d+ Killed\b|^\W*Killed\W*$",
        "torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -11) local_rank: 0 (pid: 7331)",
        weight=Weight.SIGNAL,
    ),
    Rule(
        "process.worker-died",
        Cause.CRASH,
        (
            "worker process has died",
            "orker unexpectedly exits",
            "ActorDiedError",
            "RayActorError",
            "exited unexpectedly",
        ),
        r"worker process has died|[Ww]orker unexpectedly exits|DataLoader worker .* exited unexpectedly|"
        r"ActorDiedError|RayActorError",
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit "
        "detail: Worker "
        "unexpectedly exits with a connection error code 2. End of file.",
        weight=Weight.WAITED,
    ),
    Rule(
        "process.aborted",
        Cause.CRASH,
        ("exitcode", "SIGABRT", "Aborted", "terminate called", "return code = -", "xit code 134", "xit code -6"),
        r"exitcode *: *-6\b|return code = -6\b|<Signals\.SIGABRT|terminated with signal SIGABRT|"
        r"[Ss]ignal 6 \(SIGABRT\)|xited with exit code 134\b|exit code -6\b|tasks? [\d,-]+: Aborted|^Aborted\b|"
        r"terminate called (?:after|"
        r"without)",
        "srun: error: node01: task 3: Aborted (core dumped)",
        weight=Weight.ECHO,
    ),
    Rule(
        "process.ended-from-outside",
        Cause.CANCELLED,
        ("death signal", "SIGHUP", "KeyboardInterrupt", "got signal", "SIGINT"),
        r"[Rr]eceived \S+ death signal|closing signal SIG(?:HUP|INT)|KeyboardInterrupt|got signal: (?:1|2|15)\b|"
        r"SignalException",
        "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers",
        weight=Weight.ECHO,
    ),
    Rule(
        "process.ended-with-others",
        Cause.CASCADE,
        (
            "closing signal",
            "SIGTERM",
            "exitcode",
            "xited with exit code",
            "ChildFailedError",
            "MPI_ABORT",
            "Terminated",
        ),
        r"CalledProcessError: .*non-zero exit status|Process(?:Raised|Exited)Exception|return code = (?:[1-9]|-15)|"
        r"closing signal SIGTERM|via Signals\.SIGTERM|exitcode *: *(?:[1-9]\d*|-15|-2)\b|[Ee]xited with exit code|"
        r"ChildFailedError|MPI_ABORT was invoked|tasks? [\d,-]+: Terminated|[Ss]ignal 15 \(SIGTERM\)",
        "srun: error: node01: task 3: Exited with exit code 1",
        weight=Weight.ECHO,
    ),
)
