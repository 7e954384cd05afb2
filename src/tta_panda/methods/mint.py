"""Mint (Bao et al. 2025, "Mint: A Simple Test-Time Adaptation of Vision-Language Models against Common Corruptions")"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.features import Batch, Encoded
from tta_panda.methods.trained import TrainedMethod, lerp
from tta_panda.options import NonNegative


class Mint(TrainedMethod):
    """Separates class means, with one step from the initial weights for every batch.

    Only running means persist over batches: those of the classes, which compensate for small batches, and that of the
    gradients, which the step uses. A batch is classified after its step, by texts that move towards the class means as
    these become reliable. Loss and means are computed on plain features, and a shift of all features does not change
    the loss; predictions are computed on debiased features.

    The defaults are those of Mint's own code for CIFAR-10-C and CIFAR-100-C; for ImageNet-C it uses `lr=0.015`. It
    averages seven prompts, which are the templates named `mint`.

    Args:
        lr: learning rate of Adam.
        prior: weight of the texts relative to the class means, as a number of images.
    """

    extra_passes = 1

    lr: NonNegative = 7e-3
    prior: NonNegative = 10_000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        nothing = torch.zeros_like(self.classifier.class_embeddings)
        self.batches: int
        self.mean_gradient: dict[str, Tensor]
        self.sums: Tensor  # (K, D) of features before the steps, by predicted class
        self.counts: Tensor  # (K, 1) of these features
        self.adapted_sums: Tensor  # the same after the steps
        self.adapted_counts: Tensor
        self.add_state("batches", 0)
        self.add_state("mean_gradient", {name: torch.zeros_like(p) for name, p in self.weights.initial.items()})
        for name in ("", "adapted_"):
            self.add_state(f"{name}sums", nothing)
            self.add_state(f"{name}counts", nothing[:, :1])

    def _adapt(self, batch: Batch) -> Tensor:
        self.weights.reset()
        encoded, predicted = self._predict(batch)
        _accumulate(self.sums, self.counts, encoded.features.detach(), predicted)
        if self.backward(self._loss(encoded.features, predicted)) is not None:
            self._average_gradients()
            self.weights.optimizer.step()
        with torch.no_grad():
            encoded, predicted = self._predict(batch)
            _accumulate(self.adapted_sums, self.adapted_counts, F.normalize(encoded.features, dim=-1), predicted)
            return self.classify(encoded, self._prototypes())

    def _predict(self, batch: Batch) -> tuple[Encoded, Tensor]:
        """Encode a batch with the current weights, and predict classes (B,) by the texts."""
        encoded = self.encode(batch)
        return encoded, self.classify(encoded).argmax(dim=1)

    def _loss(self, features: Tensor, predicted: Tensor) -> Tensor:
        """Return the variance of features (B, D) within classes minus their total variance."""
        own_means = self.sums[predicted] / self.counts[predicted]  # (B, D)
        mean = self.sums.sum(dim=0) / self.counts.sum()
        own = (predicted[:, None] == predicted).sum(dim=1, dtype=features.dtype)  # (B,), images of the same class
        weights = 1 / own / (1 / own).sum()  # equal weight for all classes of the batch
        return weights @ ((features - own_means).square() - (features - mean).square()).sum(dim=1)

    def _average_gradients(self) -> None:
        """Replace the gradients of this batch by the mean over all batches."""
        self.batches += 1
        self.mean_gradient = lerp(self.mean_gradient, self.gradients(), 1 / self.batches)
        for name, parameter in self.adapted.items():
            parameter.grad = self.mean_gradient[name].clone()

    def _prototypes(self) -> Tensor:
        """Return class embeddings (K, D) between texts and class means, with the norms of the texts."""
        texts, seen = self.classifier.class_embeddings, self.adapted_counts.sum()
        means = self.adapted_sums / self.adapted_counts.clamp_min(1)  # zero for classes that were never seen
        directions = torch.lerp(F.normalize(texts, dim=-1), means, seen / (self.prior + seen))
        return F.normalize(directions, dim=-1).mul(texts.norm(dim=-1, keepdim=True))


def _accumulate(sums: Tensor, counts: Tensor, features: Tensor, labels: Tensor) -> None:
    """Add features (B, D) to the sums (K, D) and counts (K, 1) of their classes."""
    sums.index_add_(0, labels, features)
    counts.index_add_(0, labels, torch.ones_like(features[:, :1]))
