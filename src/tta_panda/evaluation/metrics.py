"""Metrics of predictions, summed batch by batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tta_panda.data.dataset import UNKNOWN

if TYPE_CHECKING:
    from torch import Tensor

CALIBRATION_BINS = 15

RECALL = 0.95
"""Share of known images that is accepted where false positives are counted."""

PERCENTILES = np.linspace(0, 100, 101)

Strengths = Mapping[str, float | None]
"""A method's beta and gamma, by name."""

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


class Scores(NamedTuple):
    """Values for each image of a batch from which all metrics follow.

    Stored as numpy arrays: numpy is much faster than torch for so few numbers.
    """

    labels: Counts  # (B,)
    predictions: Counts  # (B,)
    ranks: Counts  # (B,), number of classes that are more probable than the label
    probabilities: Floats  # (B, K)
    losses: Floats  # (B,), negative log-likelihoods of the labels
    bins: Counts  # (B,), of confidence
    overconfidence: Floats  # (B,), confidence minus whether the prediction is right
    energies: Floats  # (B,), logarithms of the sums of exponentiated logits
    p_values: Floats  # (B,), of the energies, with negatives as null distribution; NaN without negatives

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Scores:
        """Compute scores from logits (B, K) and labels (B,), both on the CPU."""
        return cls.of_each(logits[None], labels)[0]

    @classmethod
    def of_each(cls, logits: Tensor, labels: Tensor) -> list[Scores]:
        """Compute the scores of R methods on the same images from logits (R, B, K), hardly slower than for one."""
        logits = logits.double()
        log_probabilities = logits.log_softmax(dim=-1)
        energies = (logits - log_probabilities)[..., 0].numpy()  # (R, B)
        probabilities, truth = log_probabilities.exp().numpy(), labels.numpy()
        predictions, confidences = probabilities.argmax(axis=-1), probabilities.max(axis=-1)  # (R, B)
        chosen = -log_probabilities.numpy()[:, np.arange(len(truth)), truth]  # (R, B), with strided rows
        losses = np.ascontiguousarray(chosen)  # strided sums differ in the last bit from those of one method alone
        ranks = (log_probabilities.numpy() > -losses[..., None]).sum(axis=-1)  # (R, B)
        bins = np.minimum(np.ceil(confidences * CALIBRATION_BINS), CALIBRATION_BINS).astype(np.int64) - 1  # (low, high]
        overconfidence = confidences - (predictions == truth)
        p_values = np.full_like(energies, np.nan)
        columns = zip(predictions, ranks, probabilities, losses, bins, overconfidence, energies, p_values, strict=True)
        return [cls(truth, *each) for each in columns]

    def select(self, indices: Counts) -> Scores:
        """Select the scores of some images; without a copy if these are all."""
        if len(indices) == len(self.labels):
            return self
        columns: list[Any] = [column[indices] for column in self]
        return Scores(*columns)


class StreamMetrics:
    """Sums over a stream from which accuracy, prediction bias, calibration and class histograms follow.

    They are over the images of known classes. Energies and p-values, kept for all images, tell known from unknown ones.
    """

    def __init__(self, classes: int):
        self.samples = 0
        self.unknown = 0
        self.detection: list[NDArray[np.float32]] = []  # (3, B): whether an image is known, its energy and p-value
        self.probabilities: Floats = np.zeros(classes)  # (K,)
        self.predicted: Counts = np.zeros(classes, np.int64)
        self.labels: Counts = np.zeros(classes, np.int64)
        self.hits: Counts = np.zeros(classes, np.int64)  # right predictions by class
        self.top5_hits = 0
        self.losses = 0.0  # negative log-likelihoods of the labels
        self.squared_losses = 0.0
        self.overconfidence: Floats = np.zeros(CALIBRATION_BINS)  # sum of confidence - correctness
        self.strengths: dict[str, tuple[float, int]] = {}  # sums over images, and their number

    def update(self, scores: Scores, strengths: Strengths | None = None) -> None:
        """Add a batch, and the strength of the correction subtracted from it."""
        known = scores.labels != UNKNOWN
        self.detection.append(np.stack([known, scores.energies, scores.p_values], dtype=np.float32))
        scores = scores.select(np.flatnonzero(known))
        classes, images = len(self.labels), len(scores.labels)
        self.unknown += len(known) - images
        self.samples += images
        self.probabilities += scores.probabilities.sum(axis=0)
        self.predicted += np.bincount(scores.predictions, minlength=classes)
        self.labels += np.bincount(scores.labels, minlength=classes)
        self.hits += np.bincount(scores.labels[scores.predictions == scores.labels], minlength=classes)
        self.top5_hits += int((scores.ranks < 5).sum())
        self.overconfidence += np.bincount(scores.bins, scores.overconfidence, CALIBRATION_BINS)
        self.losses += float(scores.losses.sum())
        self.squared_losses += float(scores.losses @ scores.losses)
        for name, strength in (strengths or {}).items():
            if strength is not None:
                total, counted = self.strengths.get(name, (0.0, 0))
                self.strengths[name] = total + strength * images, counted + images

    @property
    def accuracy(self) -> float:
        return int(self.hits.sum()) / self.samples

    @property
    def top5_accuracy(self) -> float | None:
        """Fraction of labels among the five most probable classes; None for fewer than five classes."""
        return self.top5_hits / self.samples if len(self.labels) >= 5 else None

    @property
    def accuracy_stderr(self) -> float:
        return math.sqrt(self.accuracy * (1 - self.accuracy) / self.samples)

    @property
    def mean_probabilities(self) -> Floats:
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
        return float(np.abs(self.overconfidence).sum()) / self.samples

    def detected(self) -> dict[str, float | list[float]]:
        """How well images of known and unknown classes are told apart; empty if there are none of either."""
        if not self.unknown or not self.samples:
            return {}
        is_known, *values = np.concatenate(self.detection, axis=1).astype(float)
        (known, known_p), (unknown, unknown_p) = ([each[is_known == flag] for each in values] for flag in (1, 0))
        percentiles = {"known_energies": known, "unknown_energies": unknown}
        if not np.isnan(known_p).any():
            percentiles |= {"known_p_values": known_p, "unknown_p_values": unknown_p}
        return {
            "auroc": auroc(known, unknown),
            "fpr95": float((unknown >= np.quantile(known, 1 - RECALL, method="lower")).mean()),
            **{name: np.percentile(values, PERCENTILES).tolist() for name, values in percentiles.items()},
        }

    def mean_strength(self, name: str) -> float | None:
        """Mean of a method's beta or gamma over the images; None if it never had one."""
        total, images = self.strengths.get(name, (0.0, 0))  # without batches after which a method started over
        return total / images if images else None

    @property
    def recalls(self) -> Floats:
        """Recall of each class that occurs."""
        present = self.labels > 0
        return self.hits[present] / self.labels[present]


def prediction_bias(mean_probabilities: Floats, label_frequencies: Floats) -> float:
    """L1 distance (0 to 2) between the mean predicted probabilities and the label frequencies."""
    return float(np.abs(mean_probabilities - label_frequencies).sum())


def auroc(positives: Floats, negatives: Floats) -> float:
    """Area under the ROC curve: the probability that a positive exceeds a negative; ties count half."""
    ordered = np.sort(negatives)
    below = np.searchsorted(ordered, positives) + np.searchsorted(ordered, positives, side="right")
    return float(below.mean()) / 2 / len(negatives)
