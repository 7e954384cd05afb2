"""Tent (Wang et al. 2021, "Tent: Fully Test-Time Adaptation by Entropy Minimization"), for CLIP's image encoder."""

from __future__ import annotations

import dataclasses
from typing import Literal, Unpack

import torch
from torch import Tensor

from tta_panda.methods.batch import Batch
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod, TrainedOptions
from tta_panda.models.base import Classifier


class Tent(TrainedMethod):
    """One step per batch on the normalisation layers, towards confident predictions.

    Args:
        lr: learning rate of Adam; the default is that of Tent's own code for CIFAR-10-C.
        predict: logits of `"before"` the update, or of a second pass `"after"` it; None as the protocol does: before
            in the paper, after (and with fresh negatives) in its authors' code.
        common: the arguments of every method that trains the encoder.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 1e-3,
        predict: Literal["before", "after"] | None = None,
        **common: Unpack[TrainedOptions],
    ):
        super().__init__(classifier, lr=lr, **common)
        self.predict = predict or ("after" if self.follows_reference else "before")

    def _adapt(self, batch: Batch) -> Tensor:
        with torch.enable_grad():
            logits = self.logits(batch)
            self.step(self.loss(logits))
        if self.predict == "before":
            return logits
        with torch.no_grad():
            return self.logits(dataclasses.replace(batch, negatives=None) if self.follows_reference else batch)

    def loss(self, logits: Tensor) -> Tensor:
        """What one step makes smaller, from logits (B, K)."""
        return entropy(logits).mean()
