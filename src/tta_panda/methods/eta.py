"""ETA (Niu et al. 2022, "Efficient Test-Time Model Adaptation without Forgetting"), EATA without its regulariser."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.features import Batch
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod
from tta_panda.options import Count, NonNegative


class ETA(TrainedMethod):
    """Entropy minimisation on reliable and non-redundant images, weighted by confidence.

    The defaults are those of ETA's own code for ImageNet-C, except for the optimiser: SGD there, Adam in Panda's paper.
    For 100 and 10 classes, a `d_margin` of 0.1 and 0.4, respectively, is usual.

    Args:
        lr: learning rate of Adam.
        margin: reliable images have an entropy below `margin * ln K`.
        d_margin: images are redundant if the cosine of their prediction with the mean prediction so far is at least
            this; 1 keeps all of them.
        reset_every: reset to the initial weights after this many batches; with 1000, this is RDumb (Press et al. 2023)
            for long streams. None never resets.
    """

    lr: NonNegative = 2.5e-4
    margin: NonNegative = 0.4
    d_margin: NonNegative = 0.05
    reset_every: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.max_entropy = self.margin * math.log(len(self.classifier.class_names))
        self.mean_prediction: Tensor | None  # (K,) of the images kept so far
        self.add_state("mean_prediction", None)
        self.batches: int  # since the last reset of the weights
        self.add_state("batches", 0)

    def _adapt(self, batch: Batch) -> Tensor:
        if self.batches == self.reset_every:
            for name in ("weights", "mean_prediction", "batches"):
                self.reset_state(name)
        self.batches += 1
        logits = self.classify(self.encode(batch))
        entropies = entropy(logits)
        predictions = logits.detach().softmax(dim=-1)
        kept = self._select(predictions, entropies.detach())
        if kept.any():
            shares = kept.to(predictions.dtype) / kept.sum()
            mean = shares @ predictions
            self.mean_prediction = mean if self.mean_prediction is None else 0.9 * self.mean_prediction + 0.1 * mean
            weights = shares * (self.max_entropy - entropies.detach()).exp()
            self.step(weights @ entropies)
        return logits

    def _select(self, predictions: Tensor, entropies: Tensor) -> Tensor:
        """Return which images (B,) to train on."""
        kept = entropies < self.max_entropy
        # A margin of 1 must keep all images, whatever the rounding of cosines.
        # The authors' code lacks this filter where features are debiased.
        keeps_redundant = self.d_margin >= 1 or (self.follows_reference and self.features.active is not None)
        if self.mean_prediction is not None and not keeps_redundant:
            similarity = F.cosine_similarity(self.mean_prediction[None], predictions, dim=1)
            kept &= similarity.abs() < self.d_margin
        return kept
