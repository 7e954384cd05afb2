"""SAR (Niu et al. 2023, "Towards Stable Test-Time Adaptation in Dynamic Wild World")."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from tta_panda.methods.features import Batch
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod
from tta_panda.options import NonNegative, NonNegativeInt
from tta_panda.transfers import to_host


class SAR(TrainedMethod):
    """Sharpness-aware entropy minimisation on reliable images, with a reset when entropies collapse.

    The defaults are those of SAR's own code for ViT-B and batches of 64; it scales `lr` with the batch size.

    Args:
        lr: learning rate of the optimiser, which uses the gradient at the perturbed weights.
        rho: norm of the perturbation, along the gradient.
        margin: reliable images have an entropy below `margin * ln K`.
        reset_constant: the model is reset when the moving average of the loss falls below this.
        optimizer: `"adam"`, or `"sgd"` with momentum 0.9.
        skip_last_blocks: this many last blocks of the image encoder, and its final norm, do not adapt; None for a
            quarter of the blocks, such as three of twelve in SAR's own code.
    """

    gradient_passes = 2

    lr: NonNegative = 1e-3
    rho: NonNegative = 0.05
    margin: NonNegative = 0.4
    reset_constant: float = 0.2
    optimizer: Literal["adam", "sgd"] = "sgd"
    skip_last_blocks: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.max_entropy = self.margin * math.log(len(self.classifier.class_names))
        self.mean_loss: float | None
        self.add_state("mean_loss", None)

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr, momentum=0.9)
        return super().make_optimizer(parameters)

    def _adapt(self, batch: Batch) -> Tensor:
        logits = self.classify(self.encode(batch))
        entropies = entropy(logits)
        kept = entropies < self.max_entropy
        reliable = to_host(kept)[0].nonzero()[:, 0]
        if len(reliable):
            self.weights.optimizer.zero_grad()
            (entropies.where(kept, 0.0).sum() / len(reliable)).backward()
            if self.follows_reference:  # the second pass of the authors' code draws new negatives
                batch = dataclasses.replace(batch, negatives=self.features.draw(batch.images))
            self._sharpness_aware_step(batch.select(reliable))
        return logits

    def _sharpness_aware_step(self, reliable: Batch) -> None:
        with perturbed(list(self.adapted.values()), self.rho):
            entropies = entropy(self.classify(self.encode(reliable)))
            kept = ~(entropies >= self.max_entropy)  # keeps NaN, which makes the loss NaN
            latest = self.backward(entropies.where(kept, 0.0).sum() / kept.sum().clamp_min(1), kept)
        if latest is None:
            return
        self.weights.optimizer.step()
        self.mean_loss = latest if self.mean_loss is None else 0.9 * self.mean_loss + 0.1 * latest
        if self.mean_loss < self.reset_constant:  # predictions have collapsed
            self.restart()


@contextlib.contextmanager
def perturbed(parameters: list[nn.Parameter], rho: float) -> Iterator[None]:
    """Move weights along their gradient, by rho in the norm over all tensors, and restore them exactly at the end."""
    before = [parameter.detach().clone() for parameter in parameters]
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    scale = rho / (get_total_norm(gradients) + 1e-12)
    try:
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient * scale)
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
