"""Adam and AdamW as their publications write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Adam:
    """`decay` is AdamW's decoupled weight decay; zero is Adam."""

    def __init__(self, parameters: Sequence[Tensor], lr: float, decay: float = 0.0, eps: float = 1e-8):
        self.parameters = list(parameters)
        self.lr = lr
        self.decay = decay
        self.eps = eps
        self.t = 0
        self.m = [torch.zeros_like(p) for p in self.parameters]
        self.v = [torch.zeros_like(p) for p in self.parameters]

    def step(self, gradients: Sequence[Tensor]) -> None:
        self.t += 1
        first_correction = 1 - 0.9**self.t
        second_correction = 1 - 0.999**self.t
        with torch.no_grad():
            for i, (p, g) in enumerate(zip(self.parameters, gradients, strict=True)):
                self.m[i] = 0.9 * self.m[i] + 0.1 * g
                self.v[i] = 0.999 * self.v[i] + 0.001 * g * g
                p.copy_(p - self.lr * self.decay * p)
                p.copy_(
                    p - self.lr * (self.m[i] / first_correction) / ((self.v[i] / second_correction).sqrt() + self.eps)
                )


def first_adamw_step(x: Tensor, g: Tensor, lr: float, decay: float = 0.01) -> Tensor:
    """AdamW's first step from a fresh state, where the corrected moments are g and g²."""
    return (1 - lr * decay) * x - lr * g / (torch.sqrt(g * g) + 1e-8)


def global_norm(gradients: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float((g.double() ** 2).sum()) for g in gradients))
