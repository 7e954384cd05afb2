"""IM: information maximisation, a part of SHOT (Liang et al. 2020, "Do We Really Need to Access the Source Data?")."""

from __future__ import annotations

from torch import Tensor

from tta_panda.methods.losses import marginal_entropy
from tta_panda.methods.tent import Tent
from tta_panda.options import NonNegative


class IM(Tent):
    """As Tent, towards predictions that are confident each, and different from each other over a batch.

    It takes the classes of a batch for balanced, so correlated labels mislead it. From a single image it learns nothing
    with a `diversity` of 1: both terms are the same.

    Args:
        lr: learning rate of Adam; the default is Tent's, for comparison.
        diversity: weight of the entropy of the mean prediction; 1 in SHOT, whose loss this is a part of. Zero is Tent.
    """

    diversity: NonNegative = 1.0

    def loss(self, logits: Tensor) -> Tensor:
        return super().loss(logits) - self.diversity * marginal_entropy(logits[None])[0]
