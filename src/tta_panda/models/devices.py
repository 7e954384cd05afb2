"""Where a model runs, and in which precision."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from tta_panda.errors import InvalidInputError, UnknownNameError

AUTO = "auto"

Precision = Literal["fp32", "bf16", "fp16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

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


def check_precision(precision: str) -> None:
    if precision not in AUTOCAST:
        raise UnknownNameError("precision", precision, AUTOCAST)
