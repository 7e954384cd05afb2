"""Mint (Bao et al. 2025, "Mint: A Simple Test-Time Adaptation of Vision-Language Models against Common Corruptions")"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.features import Batch, Encoded
from tta_panda.methods.trained import TrainedMethod
from tta_panda.options import NonNegative


class Mint(TrainedMethod):
    """Class means that are far from each other, by one step from the first weights for every batch.

    What goes on from batch to batch are means: those of classes, which make up for small batches, and that of the
    gradients, which the step is taken with. A batch is classified after its step, by texts that move towards the class
    means as these become reliable. The loss and the means are of plain features, and a shift of all features leaves the
    loss alone; predictions come from debiased ones.

    The defaults are those of Mint's own code for CIFAR-10-C and CIFAR-100-C; for ImageNet-C it has `lr=0.015`. It
    averages seven prompts: `templates` has them by the name of `mint`.

    Args:
        lr: learning rate of Adam.
        prior: images that the texts count for beside the class means.
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
        if self.backward(self._loss(encoded.features, predicted)):
            self._average_gradients()
            self.weights.optimizer.step()
        with torch.no_grad():
            encoded, predicted = self._predict(batch)
            _accumulate(self.adapted_sums, self.adapted_counts, F.normalize(encoded.features, dim=-1), predicted)
            return self.classify(encoded, self._prototypes())

    def _predict(self, batch: Batch) -> tuple[Encoded, Tensor]:
        """What the model gives as it is now, and the classes (B,) that the texts see in it."""
        encoded = self.encode(batch)
        return encoded, self.classify(encoded).argmax(dim=1)

    def _loss(self, features: Tensor, predicted: Tensor) -> Tensor:
        """How far features (B, D) are from the means of their classes, less how far they are from that of all."""
        own_means = self.sums[predicted] / self.counts[predicted]  # (B, D)
        mean = self.sums.sum(dim=0) / self.counts.sum()
        in_batch = predicted.bincount().to(features.dtype)
        weights = 1 / (in_batch.count_nonzero() * in_batch[predicted])  # all classes of the batch weigh the same
        return weights @ ((features - own_means).square() - (features - mean).square()).sum(dim=1)

    def _average_gradients(self) -> None:
        """Put the mean of all batches' gradients in the place of this batch's."""
        self.batches += 1
        for name, parameter in self.adapted.items():
            latest = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.mean_gradient[name] = self.mean_gradient[name].lerp(latest, 1 / self.batches)
            parameter.grad = self.mean_gradient[name].clone()

    def _prototypes(self) -> Tensor:
        """Class embeddings (K, D) between texts and class means, as long as the texts."""
        texts, seen = self.classifier.class_embeddings, self.adapted_counts.sum()
        means = self.adapted_sums / self.adapted_counts.clamp_min(1)  # zero, so nothing, where a class was never seen
        directions = torch.lerp(F.normalize(texts, dim=-1), means, seen / (self.prior + seen))
        return F.normalize(directions, dim=-1).mul(texts.norm(dim=-1, keepdim=True))


def _accumulate(sums: Tensor, counts: Tensor, features: Tensor, labels: Tensor) -> None:
    """Add features (B, D) to the sums (K, D) and counts (K, 1) of their classes."""
    sums.index_add_(0, labels, features)
    counts.index_add_(0, labels, torch.ones_like(features[:, :1]))
