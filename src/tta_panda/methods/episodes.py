"""Adaptation that starts afresh with every image: a few steps of AdamW from a given point, many images at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor

from tta_panda.methods.checks import check_range
from tta_panda.methods.views import ViewMethod, ViewOptions
from tta_panda.models.base import Classifier
from tta_panda.panda import Encoded


class EpisodicMethod(ViewMethod):
    """A method that takes a few steps for each image alone, so that its confident views agree.

    Args:
        lr: learning rate of AdamW.
        steps: updates per image; which views are confident is decided before the first.
        more: the arguments of every method with views.
    """

    def __init__(self, classifier: Classifier, *, lr: float, steps: int, **more: Unpack[ViewOptions]):
        check_range("lr", lr, 0)
        check_range("steps", steps, 1)
        super().__init__(classifier, **more)
        self.lr = lr
        self.steps = steps

    def view_features(self, encoded: Encoded) -> Tensor:
        features = super().view_features(encoded)
        # The authors' code scales debiased features to unit length again.
        return self.classifier.embed(features) if self.follows_reference else features


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
