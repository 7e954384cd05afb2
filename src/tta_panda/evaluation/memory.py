"""Current and peak memory use."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

import torch

_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak, if the system supports it; otherwise earlier peaks of the process count as well."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):
            _REFERENCES.write_text("5")  # Linux: the high-water mark of resident memory


def peak_memory(device: torch.device) -> int | None:
    """Peak memory in bytes: of tensors on a GPU, otherwise of the process; None if it is not available."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _linux_status("VmHWM") or _peak_of_process()


def memory_in_use(device: torch.device) -> int | None:
    """Memory in use in bytes: by tensors on a GPU, otherwise by the process, or its peak if only that is available."""
    return (
        torch.cuda.memory_allocated(device) if device.type == "cuda" else _linux_status("VmRSS") or _peak_of_process()
    )


def _linux_status(field: str) -> int | None:
    """Read a number of bytes from Linux's status of this process."""
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
