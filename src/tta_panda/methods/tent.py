"""Tent (Wang et al. 2021, "Tent: Fully Test-Time Adaptation by Entropy Minimization"), for CLIP's image encoder."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod


class Tent(TrainedMethod):
    """One step per batch on the normalisation layers, towards confident predictions.

    Args:
        lr: learning rate of Adam; the default is that of Tent's own code for CIFAR-10-C.
        predict_with: the model `"before"` the update, or `"after"` it, in a second pass; None as the protocol does:
            before in the paper, after (and with fresh negatives) in its authors' code.
    """

    predict_with: Literal["before", "after"] | None = None

    def _adapt(self, batch: Batch) -> Tensor:
        logits = self.classify(self.encode(batch))
        self.step(self.loss(logits))
        if self.predict_with == "before" or (self.predict_with is None and not self.follows_reference):
            return logits
        if self.follows_reference:
            batch = dataclasses.replace(batch, negatives=None)
        with torch.no_grad():
            return self.classify(self.encode(batch))

    def loss(self, logits: Tensor) -> Tensor:
        """What one step makes smaller, from logits (B, K)."""
        return entropy(logits).mean()

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        default = "after" if options["protocol"] == "reference" else "before"
        if (options["predict_with"] or default) == "after":
            passes.images += batch.images + batch.negatives
        return passes
