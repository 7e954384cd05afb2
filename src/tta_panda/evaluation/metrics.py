"""Numbers about predictions, gathered batch by batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_panda.errors import NumericalError

CALIBRATION_BINS = 15


class StreamMetrics:
    """Sums over a stream from which accuracy, prediction bias, calibration and class histograms follow."""

    def __init__(self, classes: int):
        self.samples = 0
        self.probabilities = torch.zeros(classes, dtype=torch.float64)  # (K,)
        self.predicted = torch.zeros(classes, dtype=torch.int64)
        self.labels = torch.zeros(classes, dtype=torch.int64)
        self.hits = torch.zeros(classes, dtype=torch.int64)  # right predictions by class
        self.losses = 0.0  # negative log-likelihoods of the labels
        self.squared_losses = 0.0
        self.overconfidence = torch.zeros(CALIBRATION_BINS, dtype=torch.float64)  # sum of confidence - correctness

    def update(self, logits: Tensor, labels: Tensor) -> None:
        """Add a batch: logits (B, K) and labels (B,), both on the CPU."""
        if not logits.isfinite().all():
            raise NumericalError(
                f"Predictions became NaN or infinite after {self.samples} images: the method diverged. "
                "A smaller learning rate may help, as in --set lr=1e-4."
            )
        classes = len(self.predicted)
        log_probabilities = logits.double().log_softmax(dim=1)
        confidences, predictions = log_probabilities.exp().max(dim=1)
        right = predictions == labels
        losses = -log_probabilities.gather(1, labels[:, None])
        self.samples += len(labels)
        self.probabilities += log_probabilities.exp().sum(dim=0)
        self.predicted += torch.bincount(predictions, minlength=classes)
        self.labels += torch.bincount(labels, minlength=classes)
        self.hits += torch.bincount(labels[right], minlength=classes)
        self.losses += float(losses.sum())
        self.squared_losses += float(losses.square().sum())
        bins = (confidences * CALIBRATION_BINS).ceil().long().clamp(1, CALIBRATION_BINS) - 1  # (low, high]
        self.overconfidence.index_add_(0, bins, confidences - right.double())

    @property
    def accuracy(self) -> float:
        return int(self.hits.sum()) / self.samples

    @property
    def accuracy_stderr(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.samples)

    @property
    def mean_probabilities(self) -> Tensor:
        return self.probabilities / self.samples

    @property
    def bias(self) -> float:
        return prediction_bias(self.mean_probabilities, self.labels / self.samples)

    @property
    def nll(self) -> float:
        return self.losses / self.samples

    @property
    def nll_stderr(self) -> float:
        return math.sqrt(max(0.0, self.squared_losses / self.samples - self.nll**2) / self.samples)

    @property
    def ece(self) -> float:
        """Expected calibration error: mean gap between confidence and accuracy over bins of equal width."""
        return float(self.overconfidence.abs().sum()) / self.samples

    @property
    def recalls(self) -> Tensor:
        """Accuracy on the images of each class that has any."""
        present = self.labels > 0
        return self.hits[present] / self.labels[present]


def prediction_bias(mean_probabilities: Tensor, label_frequencies: Tensor) -> float:
    """L1 distance (0 to 2) between how often classes are predicted, softly, and how often they occur."""
    return float((mean_probabilities - label_frequencies).abs().sum())


class MetricsByTenth:
    """Metrics for each tenth of a stream of `images` images, in the order of the stream."""

    TENTHS = 10

    def __init__(self, classes: int, images: int):
        self.images = images
        self.seen = 0
        self.tenths = [StreamMetrics(classes) for _ in range(self.TENTHS)]

    def update(self, logits: Tensor, labels: Tensor) -> None:
        place = torch.arange(self.seen, self.seen + len(labels)) * self.TENTHS // self.images  # (B,)
        for tenth in place.unique().tolist():
            self.tenths[tenth].update(logits[place == tenth], labels[place == tenth])
        self.seen += len(labels)
