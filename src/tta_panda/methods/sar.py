"""SAR (Niu et al. 2023, "Towards Stable Test-Time Adaptation in Dynamic Wild World")."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from tta_panda.errors import UnknownNameError
from tta_panda.methods.base import Protocol, TrainedMethod
from tta_panda.methods.checks import check_range
from tta_panda.methods.losses import entropy
from tta_panda.models.base import Classifier
from tta_panda.panda import Batch, Panda

OPTIMIZERS = ("adam", "sgd")


class SAR(TrainedMethod):
    """Sharpness-aware entropy minimisation on reliable images, started over when entropies collapse.

    The values of SAR's own publication are `optimizer="sgd"`, `lr=1e-3 / 64 * batch size`, `rho=0.05` and
    `skip_last_blocks=3`.

    Args:
        lr: learning rate of the optimiser that steps with the gradient of the perturbed weights.
        rho: how far weights are moved uphill before that gradient is taken.
        margin: reliable images have an entropy below `margin * ln K`.
        reset_constant: the model is restored when the moving average of the loss falls below it.
        optimizer: `"adam"`, or `"sgd"` with momentum 0.9.
        skip_last_blocks: so many last blocks of the image encoder, and its final norm, do not adapt; 0 adapts all.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 1e-3,
        rho: float = 0.05,
        margin: float = 0.4,
        reset_constant: float = 0.2,
        optimizer: Literal["adam", "sgd"] = "adam",
        skip_last_blocks: int = 0,
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
    ):
        for name, value in (("lr", lr), ("rho", rho), ("margin", margin), ("skip_last_blocks", skip_last_blocks)):
            check_range(name, value, 0)
        if optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", optimizer, OPTIMIZERS)
        super().__init__(classifier, skip_last_blocks=skip_last_blocks, debias=debias, protocol=protocol, seed=seed)
        self.lr = lr
        self.rho = rho
        self.entropy_margin = margin * math.log(len(classifier.class_names))
        self.reset_constant = reset_constant
        self.optimizer_name = optimizer
        self.mean_loss: float | None
        self.add_state("mean_loss", None)

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimizer_name == "sgd":
            return torch.optim.SGD(parameters, lr=self.lr, momentum=0.9)
        return torch.optim.Adam(parameters, lr=self.lr, betas=(0.9, 0.999), weight_decay=0.0)

    def _adapt(self, images: Tensor) -> Tensor:
        batch = self.features.draw(images)
        with torch.enable_grad():
            logits = self.logits(batch)
            entropies = entropy(logits)
            kept = (entropies < self.entropy_margin).nonzero()[:, 0]
            if len(kept):
                self.optimizer.zero_grad()
                entropies[kept].mean().backward()
                self._sharpness_aware_step(batch.select(kept))
        return logits

    def _sharpness_aware_step(self, reliable: Batch) -> None:
        with moved_uphill(list(self.adapted.values()), self.rho):
            entropies = entropy(self.logits(reliable))
            entropies = entropies[entropies < self.entropy_margin]
            self.optimizer.zero_grad()
            if not len(entropies):
                return
            loss = entropies.mean()
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._watch(float(loss.detach()))

    def _watch(self, loss: float) -> None:
        """Start over where the loss has been so low that predictions must have collapsed."""
        self.mean_loss = loss if self.mean_loss is None else 0.9 * self.mean_loss + 0.1 * loss
        if self.mean_loss < self.reset_constant:
            self.restore()
            self.mean_loss = None


@contextlib.contextmanager
def moved_uphill(parameters: list[nn.Parameter], rho: float) -> Iterator[None]:
    """Weights at the distance rho along their gradient, over all tensors; put back bit by bit at the end."""
    before = [parameter.detach().clone() for parameter in parameters]
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    try:
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient * (rho / (norm + 1e-12)))
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
