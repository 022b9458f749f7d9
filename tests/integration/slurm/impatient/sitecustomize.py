"""Lets submitit's job not wait the minute that it waits for its function, which then never arrives."""

from __future__ import annotations

import sys
import time

if any("submitit.core._submit" in word for word in sys.orig_argv):
    time.sleep = lambda seconds: None
