"""Tent (Wang et al. 2021, "Tent: Fully Test-Time Adaptation by Entropy Minimization"), for CLIP's image encoder."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError
from tta_panda.methods.base import Protocol, TrainedMethod
from tta_panda.methods.checks import check_range
from tta_panda.methods.losses import entropy
from tta_panda.models.base import Classifier
from tta_panda.panda import Panda


class Tent(TrainedMethod):
    """One step per batch on the normalisation layers, towards confident predictions.

    Args:
        lr: learning rate of Adam.
        predict: logits of `"before"` the update, or of a second pass `"after"` it; None as the protocol does: before
            in the paper, after (and with fresh negatives) in its authors' code.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 1e-3,
        predict: Literal["before", "after"] | None = None,
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
    ):
        if predict not in ("before", "after", None):
            raise InvalidInputError(f'predict must be "before" or "after" the update, got {predict!r}.')
        check_range("lr", lr, 0)
        super().__init__(classifier, debias=debias, protocol=protocol, seed=seed)
        self.lr = lr
        self.predict = predict or ("after" if self.follows_reference else "before")

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.lr, betas=(0.9, 0.999), weight_decay=0.0)

    def _adapt(self, images: Tensor) -> Tensor:
        batch = self.features.draw(images)
        with torch.enable_grad():
            logits = self.logits(batch)
            self.step(entropy(logits).mean())
        if self.predict == "before":
            return logits
        with torch.no_grad():
            return self.logits(self.features.draw(images) if self.follows_reference else batch)
