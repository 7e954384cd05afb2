"""Numbers about predictions, gathered batch by batch."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

CALIBRATION_BINS = 15

Strengths = Mapping[str, float | None]
"""A method's beta and gamma, by name."""


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
        self.strengths: dict[str, float] = {}  # summed over images

    def update(self, logits: Tensor, labels: Tensor, strengths: Strengths | None = None) -> None:
        """Add a batch: logits (B, K) and labels (B,), both on the CPU, and how much of an offset was subtracted."""
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
        for name, strength in (strengths or {}).items():
            if strength is not None:
                self.strengths[name] = self.strengths.get(name, 0.0) + strength * len(labels)

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
    def mean_beta(self) -> float | None:
        return self._mean_strength("beta")

    @property
    def mean_gamma(self) -> float | None:
        return self._mean_strength("gamma")

    def _mean_strength(self, name: str) -> float | None:
        return self.strengths[name] / self.samples if name in self.strengths else None

    @property
    def recalls(self) -> Tensor:
        """Accuracy on the images of each class that has any."""
        present = self.labels > 0
        return self.hits[present] / self.labels[present]


def prediction_bias(mean_probabilities: Tensor, label_frequencies: Tensor) -> float:
    """L1 distance (0 to 2) between how often classes are predicted, softly, and how often they occur."""
    return float((mean_probabilities - label_frequencies).abs().sum())


class GroupedMetrics:
    """Metrics of groups of images, such as domains or tenths of a stream, in the order of their first appearance."""

    def __init__(self, classes: int):
        self.groups: dict[Hashable, StreamMetrics] = defaultdict(partial(StreamMetrics, classes))

    def update(
        self, groups: Sequence[Hashable], logits: Tensor, labels: Tensor, strengths: Strengths | None = None
    ) -> None:
        """Add a batch; `groups` says where each image belongs."""
        for group in dict.fromkeys(groups):
            members = torch.tensor([each == group for each in groups])
            self.groups[group].update(logits[members], labels[members], strengths)
