"""Where a model runs, and in which precision."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Literal

import torch

from tta_panda.errors import InvalidInputError, UnknownNameError

AUTO = "auto"

Precision = Literal["fp32", "bf16", "fp16"]

AUTOCAST: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(device: str) -> str:
    """The device itself, if it can be used here; for `"auto"` the best one that can."""
    if device == AUTO:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        here = "auto (which is " + resolve_device(AUTO) + " here)"
        raise InvalidInputError(f"The device {device!r} cannot be used here: {reason}. Use {here} or cpu.") from error
    return device


def check_precision(precision: str, device: str = "cpu") -> None:
    """Raise unless encoders can compute in this precision on this device."""
    if precision not in AUTOCAST:
        raise UnknownNameError("precision", precision, AUTOCAST)
    kind = torch.device(device).type
    if AUTOCAST[precision] is not None and not torch.amp.is_autocast_available(kind):
        raise InvalidInputError(
            f"torch {torch.__version__} cannot compute in {precision} on {kind}. Use fp32, or another device."
        )


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute in the tensors' own precision, whatever `torch.autocast` the caller is in, here and on the CPU."""
    with contextlib.ExitStack() as stack:
        for kind in dict.fromkeys((device.type, "cpu")):
            # Only where one is active: some versions of torch refuse any autocast on MPS, even one that is disabled.
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def clock(device: torch.device) -> float:
    """Now, with all work done: a GPU returns before its results are there."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
