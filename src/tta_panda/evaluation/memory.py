"""Memory in use now, and at its peak."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import torch

_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory(device: torch.device) -> None:
    """Start to measure the peak anew. Where the system cannot, earlier peaks of the process count, too."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):
            _REFERENCES.write_text("5")  # Linux: the high-water mark of resident memory


def peak_memory(device: torch.device) -> int | None:
    """Peak memory in bytes: of tensors on a GPU, else of the whole process; None where the system does not tell."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _of_process("VmHWM") or _peak_of_process()


def memory_in_use(device: torch.device) -> int | None:
    """Bytes that are in use now: by tensors on a GPU, else by the whole process, or at most so far where only that is
    known."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else _of_process("VmRSS") or _peak_of_process()


def _of_process(field: str) -> int | None:
    """A number of bytes that Linux keeps of this process."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"{field}:\s+(\d+) kB", _STATUS.read_text()):
            return 1024 * int(found[1])
    return None


def _peak_of_process() -> int | None:
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
