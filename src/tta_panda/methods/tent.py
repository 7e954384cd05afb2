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
    """Entropy minimisation: one step per batch on the normalisation layers.

    Args:
        lr: learning rate of Adam; the default is that of Tent's own code for CIFAR-10-C.
        predict_with: predict with the model `"before"` the update, or `"after"` it, in a second pass; None for the
            protocol's choice: before it in the paper, after it (and with new negatives) in the authors' code.
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
        """Return the loss of logits (B, K), which a step minimises."""
        return entropy(logits).mean()

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        default = "after" if options["protocol"] == "reference" else "before"
        if (options["predict_with"] or default) == "after":
            passes.images += batch.images + batch.negatives
        return passes
