"""Bridge's own forward step, for trials of two drivers that take turns on the same GPUs: while one trains, the other's
next trial imports. Imported last, it waits until local rank 0 of no other trial holds the lock, and holds it until this
process ends.
"""

import fcntl
import os
import tempfile

from megatron.bridge.training.gpt_step import forward_step  # noqa: F401

if os.environ["LOCAL_RANK"] == "0":
    fcntl.flock(os.open(f"{tempfile.gettempdir()}/turn.lock", os.O_WRONLY | os.O_CREAT, 0o600), fcntl.LOCK_EX)
