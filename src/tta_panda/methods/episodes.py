"""Adaptation that starts afresh with every image: a few steps of AdamW from a given point, many images at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def minimise(losses: Callable[[Tensor], Tensor], start: Tensor, lr: float, steps: int) -> Tensor:
    """Where AdamW gets from `start` (B, ...), each of the B rows for its own loss.

    AdamW works number by number and the losses (B,) do not share any, so that stacking images changes nothing.
    """
    parameter = start.detach().clone().requires_grad_(True)
    optimizer = torch.optim.AdamW([parameter], lr=lr, weight_decay=0.01)
    for _ in range(steps):
        with torch.enable_grad():
            total = losses(parameter).sum()
        parameter.grad = torch.autograd.grad(total, parameter)[0]
        optimizer.step()
    return parameter.detach()
