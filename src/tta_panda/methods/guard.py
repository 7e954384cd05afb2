"""Whether predictions have drifted away from those of the unadapted model, from a few images of every batch.

Entropy minimisation collapses into few classes without any sign of it in its own loss. How often each class is
predicted for the same images before and after adaptation shows it, on streams of any label frequencies: a model that is
merely surer of a frequent class is told from one that predicts it for everything.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WITNESSES = 4
"""One image in this many is predicted by the unadapted model, too."""

HALF_LIFE = 50
"""After how many images what was seen of the drift counts half."""

MOST_DRIFT = 0.15
"""L1 distance of the mean predictions, between 0 and 2. Chosen on `glyphs-val-c`."""


def no_drift(classes: int) -> Tensor:
    """The drift (K + 1,) of nothing seen: sums over images of the change in probability, and of images."""
    return torch.zeros(classes + 1)


def add_batch(drift: Tensor, adapted: Tensor, unadapted: Tensor, images: int) -> Tensor:
    """The drift after a batch of this many images, from logits (n, K) of its witnesses."""
    change = (adapted.float().softmax(dim=-1) - unadapted.float().softmax(dim=-1)).sum(dim=0)
    seen = torch.cat([change, change.new_tensor([len(adapted)])])
    return drift.to(seen.device) * math.pow(0.5, images / HALF_LIFE) + seen


def is_too_far(drift: Tensor) -> bool:
    """Whether predictions have moved further than adaptation should move them, or are no numbers."""
    distance = float((drift[:-1] / drift[-1]).abs().sum())
    return not distance <= MOST_DRIFT
