"""What ranks say when a collective, a socket or a store fails: more often than not, because another rank did."""

from __future__ import annotations

from orchestrator.outcome.rule import Rule, Weight
from orchestrator.vocabulary import Cause, Stage

COMMUNICATION_RULES = (
    Rule(
        "communication.watchdog-timeout",
        Cause.HANG,
        (
            "collective operation timeout",
            "watchdog got stuck",
            "eartbeat monitor timed out",
            "monitoredBarrier",
            "Timeout at NCCL work",
            "attempting to dump debug info",
            "collective timeout from",
            "mismatch between collectives",
        ),
        r"Terminating the process after attempting to dump debug info|"
        r"Watchdog caught collective operation timeout|Timeout at NCCL work|watchdog got stuck|"
        r"[Hh]eartbeat monitor timed out|due to (?:a )?collective timeout from|Detected mismatch between collectives|"
        r"monitoredBarrier.*(?:timed out|received errors|failed)|failed to pass monitoredBarrier",
        "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=305, OpType=ALLREDUCE, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600381 milliseconds before timing out.",
        weight=Weight.WAITED,
    ),
    Rule(
        "communication.watchdog-exception",
        Cause.HANG,
        ("detected by watchdog",),
        r"Exception \(either an error or timeout\) detected by watchdog",
        "[PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 12, last enqueued NCCL "
        "work: 14, last completed NCCL work: 11.",
        weight=Weight.ECHO,  # an error speaks for itself on another line
    ),
    Rule(
        "communication.heartbeat",
        Cause.HANG,
        ("eartbeat", "no progress", "No progress", "ob hang", "stalled"),
        r"(?i)(?:did not get|no|missed|lost) (?:a )?(?:subsequent |initial |section )?heartbeats?\b.*|"
        r"heartbeat (?:timeout|timed out)|\bno progress (?:for|in|since)\b|\bstalled (?:for|since) \d+",
        "Did not get subsequent heartbeat. Waited 180.00 seconds.",
        weight=Weight.WAITED,
    ),
    Rule(
        "communication.collective-timeout",
        Cause.HANG,
        ("timed out", "imed out", "imeout"),
        r"Application timeout caused pair closure|Some NCCL operations have failed or timed out|"
        r"NCCL.*\bcollective.*\btimed? ?out\b|"
        r"\[[^\]]*\.cc?:\d+\] Timed out waiting \d+ms for (?:recv|send) operation",
        "Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, "
        "subsequent GPU "
        "operations might run on corrupted/incomplete data.",
        weight=Weight.WAITED,
    ),
    Rule(
        "communication.port-in-use",
        Cause.COMMUNICATION,
        ("to listen on any local", "EADDRINUSE"),
        r"failed to listen on any local network address|\bEADDRINUSE\b",
        "[E socket.cpp:472] [c10d] The server socket has failed to listen on any local network address.",
        stage=Stage.DISTRIBUTED_INIT,
    ),
    Rule(
        "communication.rendezvous",
        Cause.COMMUNICATION,
        (
            "endezvous",
            "store based barrier",
            "up NCCL communicator",
            "TCPStore",
            "client socket",
            "server socket",
            "waiting for clients",
        ),
        r"Rendezvous(?:Connection|Timeout|Closed)?Error|(?:client|server) socket has (?:failed|timed out)|"
        r"setting up NCCL communicator and retr(?:ie|ei)ving|"
        r"Timed out initializing process group in store based barrier|waiting for clients",
        "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to "
        "connect to "
        "(node01, 29500).",
        weight=Weight.WAITED,
        stage=Stage.DISTRIBUTED_INIT,
    ),
    Rule(
        "communication.communicator",
        Cause.COMMUNICATION,
        ("CommInit",),
        r"(?i:[hnr]cclCommInit)\w*.{0,120}(?:[Ee]rror|[Ff]ailed)",
        "RuntimeError: HCCL function error: hcclCommInitRootInfoConfig(numRanks, &rootInfo, rank), error code is 7",
        weight=Weight.WAITED,
        stage=Stage.DISTRIBUTED_INIT,
    ),
    Rule(
        "communication.connect",
        Cause.COMMUNICATION,
        ("connectFullMesh", "Address already in use", "Connection refused", "No route to host", "service not known"),
        r"Gloo connectFullMesh failed|Address already in use|"
        r"(?:\[c10d\]|socket|[Ss]tore|NCCL|MASTER_ADDR).*(?:Connection refused|No route to host|service not known)",
        "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
        weight=Weight.WAITED,
        stage=Stage.DISTRIBUTED_INIT,
    ),
    Rule(
        "communication.unreachable",
        Cause.COMMUNICATION,
        (
            "Connection refused",
            "No route to host",
            "service not known",
            "DistStoreError",
            "DistNetworkError",
            "TCPStore",
        ),
        r"(?<!MESSAGE_TASK_EXIT: )Connection refused|No route to host|Name or service not known|"
        r"Dist(?:Store|Network)Error|TCPStore.*(?:fail|error|timed out|Broken|reset)",
        "torch.distributed.DistStoreError: wait timeout after 1800000ms, keys: /default_pg/0//2//cpu//0/2",
        weight=Weight.WAITED,
    ),
    Rule(
        "communication.nccl",
        Cause.COMMUNICATION,
        (
            "NCCL error",
            "ncclSystemError",
            "ncclRemoteError",
            "ncclInternalError",
            "ncclUnhandled",
            "DistBackendError",
            "ncclInvalid",
            "NCCL WARN Call to",
        ),
        r"NCCL WARN Call to \w+ failed|NCCL error|nccl(?:System|Remote|Internal)Error|ncclUnhandled(?:Cuda|"
        r"System)?Error|DistBackendError|"
        r"ncclInvalid(?:Usage|Argument)",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, remote process exited or "
        "there was "
        "a network error, NCCL version 2.19.3",
        weight=Weight.WAITED,
    ),
    Rule(
        "communication.peer",
        Cause.COMMUNICATION,
        (
            "by peer",
            "by remote peer",
            "Broken pipe",
            "IBV_WC_",
            "Got completion",
            "connection abort",
            "Socket recv failed",
            "Connection closed",
            "onnection reset",
            "gloo/transport",
            "remote process exited",
            "async event",
            "Max retries exceeded",
            "no socket interface found",
        ),
        r"HTTPS?ConnectionPool.*Max retries exceeded|NET/IB *: .*Got async event|no socket interface found|"
        r"[Cc]onnection (?:reset|closed) by (?:remote )?peer|\bBroken pipe\b|IBV_WC_(?!SUCCESS)|"
        r"NET/IB *: Got completion|Software caused connection abort|Socket recv failed|"
        r"gloo/transport/.*(?:[Cc]onnection|[Rr]ead error|[Ww]rite error|timed out)|remote process exited",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:34567",
        weight=Weight.WAITED,
    ),
)
