"""Telling documents, source and binary files from logs: words about failures are no failures there."""

from __future__ import annotations

import re

HEAD = 64 * 2**10
"""Bytes from the beginning that are looked at."""
_FEW = 2
_TITLE = 2
"""What a title at the very beginning counts for."""
_OPENING = 2**11
"""Bytes in which a source file has its imports."""
_DOCUMENT = re.compile(rb"^(?:#{2,6} \S|```|~~~|\|(?: ?:?-+:? ?\|)+ *\r?$)", re.MULTILINE)
"""Headings, fences and table rules of Markdown. A single # also begins comments, which logs repeat from scripts."""
_SOURCE = re.compile(
    rb"^(?:def \w+\(|class \w+[(:]|import [\w.]+|from [\w.]+ import |@\w+|#include [<\"]|package \w|fn \w+\()",
    re.MULTILINE,
)
"""Definitions at the margin; source that a traceback quotes is indented."""
_LOG = re.compile(
    rb"^\s*File \"|^\S{0,40}Traceback \(most|\[(?:rank|default)\d+\]|\d\d:\d\d:\d\d|\d(?:it/s|s/it)\b|"
    rb"slurmstepd|srun: |\biteration:? +\d+ ?/|NCCL (?:INFO|WARN)|\bexitcode\b|\bpid=\d",
    re.MULTILINE,
)


_SOME = 4 * 2**10
_CONTROLS = bytes({*range(1, 9), *range(14, 27), *range(28, 32)})
_MOST_CONTROLS = 0.05
"""Share of control characters up to which bytes are text; what terminals and holes in files bring does not count."""


def is_binary(data: bytes) -> bool:
    """Whether the beginning of a file is no text: strings in a library or in a core file are not messages of a run."""
    head = data[:_SOME].replace(b"\0", b"")
    return len(head) - len(head.translate(None, _CONTROLS)) > _MOST_CONTROLS * len(head)


def is_document(data: bytes) -> bool:
    """Whether the beginning of a file reads like Markdown or source code rather than like what a program printed."""
    head = data[:HEAD]
    if len(_SOURCE.findall(head[:_OPENING])) > _FEW:
        return True
    titled = _TITLE if head.startswith(b"# ") else 0
    marks = max(titled + len(_DOCUMENT.findall(head)), len(_SOURCE.findall(head)))
    return marks > _FEW and marks > len(_LOG.findall(head))
