"""IM: information maximisation, a part of SHOT (Liang et al. 2020, "Do We Really Need to Access the Source Data?")."""

from __future__ import annotations

from torch import Tensor

from tta_panda.methods.losses import marginal_entropy
from tta_panda.methods.tent import Tent
from tta_panda.options import NonNegative


class IM(Tent):
    """Tent with another loss: predictions should be confident for each image, and diverse over a batch.

    It assumes that the classes of a batch are balanced, so correlated labels mislead it. With a `diversity` of 1, it
    learns nothing from a single image, as both terms cancel out.

    Args:
        lr: learning rate of Adam; the default is Tent's, for comparison.
        diversity: weight of the entropy of the mean prediction; 1 as in SHOT, 0 for Tent.
    """

    diversity: NonNegative = 1.0

    def loss(self, logits: Tensor) -> Tensor:
        return super().loss(logits) - self.diversity * marginal_entropy(logits)
