"""VTE (Döbler et al. 2024, "A Lost Opportunity for Vision-Language Models"), the ensemble in vision and text space."""

from __future__ import annotations

from torch import Tensor

from tta_panda.methods.features import Encoded
from tta_panda.methods.views import ConfidentViewMethod
from tta_panda.views import Augmentation


class VTE(ConfidentViewMethod):
    """Compares the mean feature of an image's confident views with the texts.

    The mean is not normalised again, so its logits are the mean of the views' logits.

    The defaults are those of VTE's own code, which adds AugMix for fine-grained data sets only. For the ensemble in
    text space, create the classifier with several templates.
    """

    augmentation: Augmentation = "crops"

    def _adapt(self, encoded: Encoded) -> Tensor:
        logits = self.view_logits(encoded)  # (B, V, K)
        return self.confident(logits, logits).mean(dim=1)
