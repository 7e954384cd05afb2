"""Numbers about predictions, gathered batch by batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_panda.errors import NumericalError


class Tally:
    """Sums over a stream from which accuracy, prediction bias and class histograms follow."""

    def __init__(self, classes: int):
        self.samples = 0
        self.correct = 0
        self.probabilities = torch.zeros(classes, dtype=torch.float64)  # (K,)
        self.predicted = torch.zeros(classes, dtype=torch.int64)
        self.labels = torch.zeros(classes, dtype=torch.int64)

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: logits (B, K) and labels (B,), both on the CPU."""
        if not logits.isfinite().all():
            raise NumericalError(
                f"Predictions became NaN or infinite after {self.samples} images: the method diverged. "
                "A smaller learning rate may help, as in --set lr=1e-4."
            )
        predictions = logits.argmax(dim=1)
        self.samples += len(labels)
        self.correct += int((predictions == labels).sum())
        self.probabilities += logits.double().softmax(dim=1).sum(dim=0)
        self.predicted += torch.bincount(predictions, minlength=len(self.predicted))
        self.labels += torch.bincount(labels, minlength=len(self.labels))

    @property
    def accuracy(self) -> float:
        return self.correct / self.samples

    @property
    def accuracy_stderr(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.samples)

    @property
    def mean_probabilities(self) -> Tensor:
        return self.probabilities / self.samples

    @property
    def l1(self) -> float:
        return prediction_bias(self.mean_probabilities, self.labels / self.samples)


def prediction_bias(mean_probabilities: Tensor, label_frequencies: Tensor) -> float:
    """L1 distance (0 to 2) between how often classes are predicted, softly, and how often they occur."""
    return float((mean_probabilities - label_frequencies).abs().sum())
