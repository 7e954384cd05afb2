"""EATA (Niu et al. 2022, "Efficient Test-Time Model Adaptation without Forgetting"): ETA with its regulariser."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.eta import ETA
from tta_panda.methods.features import Batch, isolated
from tta_panda.methods.trained import lerp
from tta_panda.models.prepare import Images
from tta_panda.options import NonNegative, NonNegativeInt

IMAGES_PER_GRADIENT = 64
"""Batch size of the gradients that the authors' code squares."""


class EATA(ETA):
    """ETA whose weights stay near the initial ones, the more important a weight is for predictions, the nearer.

    Importance is the Fisher information: the mean squared gradient of the cross entropy with pseudo-labels, for the
    initial weights and without correction. EATA estimates it on clean images before the stream; pass them to
    `estimate_fisher`. Without them, the first images of the stream are used.

    The defaults are those of EATA's own code for ImageNet-C, except for the optimiser; for CIFAR-10-C, a
    `fisher_weight` of 1 is usual.

    Args:
        fisher_weight: weight of the squared distance to the initial weights.
        fisher_images: number of images that the Fisher information is estimated on; those that `estimate_fisher` did
            not see are the first of the stream.
    """

    fisher_weight: NonNegative = 2000.0
    fisher_images: NonNegativeInt = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fisher: dict[str, Tensor]  # mean over gradients
        self.add_state("fisher", {name: torch.zeros_like(p) for name, p in self.weights.initial.items()})
        self.fisher_gradients = self.add_state("fisher_gradients", 0)
        self.images_for_fisher = self.add_state("images_for_fisher", 0)

    def estimate_fisher(self, images: Images) -> None:
        """Estimate the Fisher information on clean images, in addition to those of earlier calls.

        It replaces what was learnt from the stream, and a reset keeps it.
        """
        with self._lock, isolated(self.classifier.model.device):
            self.reset()
            self._estimate(self.features.prepare(images).images)
            for name in ("fisher", "fisher_gradients", "images_for_fisher"):
                self.add_state(name, getattr(self, name))

    def _adapt(self, batch: Batch) -> Tensor:
        missing = self.fisher_images - self.images_for_fisher
        if missing > 0:
            self._estimate(batch.images[:missing])
        return super()._adapt(batch)

    def _estimate(self, images: Tensor) -> None:
        """Add prepared images to the estimate of the Fisher information."""
        self.images_for_fisher += len(images)
        with self.weights.replaced(self.weights.initial), torch.enable_grad():
            # The publication squares the gradients of single images.
            for some in images.split(IMAGES_PER_GRADIENT if self.follows_reference else 1):
                logits = self.classifier.logits(self.embed(some).features)
                if self.backward(F.cross_entropy(logits, logits.argmax(dim=1))) is not None:
                    self.fisher_gradients += 1
                    squares = {name: gradient.square() for name, gradient in self.gradients().items()}
                    self.fisher = lerp(self.fisher, squares, 1 / self.fisher_gradients)

    def step(self, loss: Tensor, used: Tensor | None = None) -> None:
        initial = self.weights.initial
        distances = [(self.fisher[name] * (p - initial[name]).square()).sum() for name, p in self.adapted.items()]
        super().step(loss + self.fisher_weight * torch.stack(distances).sum(), used)

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        """Return the passes for a batch that the Fisher information is estimated on."""
        passes = super().expected_passes(batch, options)
        passes.images_with_gradient += min(batch.images, options["fisher_images"])
        return passes
