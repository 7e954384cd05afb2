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

When = Literal["before", "after"]


class Tent(TrainedMethod):
    """One step per batch on the normalisation layers, towards confident predictions.

    Args:
        lr: learning rate of Adam; the default is that of Tent's own code for CIFAR-10-C.
        predict: logits of `"before"` the update, or of a second pass `"after"` it; None as the protocol does: before
            in the paper, after (and with fresh negatives) in its authors' code.
    """

    predict: When | None = None

    def _adapt(self, batch: Batch) -> Tensor:
        logits = self.logits(batch)
        self.step(self.loss(logits))
        if _predicts(self.predict, self.protocol) == "before":
            return logits
        with torch.no_grad():
            return self.logits(dataclasses.replace(batch, negatives=None) if self.follows_reference else batch)

    def loss(self, logits: Tensor) -> Tensor:
        """What one step makes smaller, from logits (B, K)."""
        return entropy(logits).mean()

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        if _predicts(options["predict"], options["protocol"]) == "after":
            passes.images += batch.images + batch.negatives
        return passes


def _predicts(when: When | None, protocol: str) -> When:
    return when or ("after" if protocol == "reference" else "before")
