"""Numbers about predictions, gathered batch by batch."""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

CALIBRATION_BINS = 15

Strengths = Mapping[str, float | None]
"""A method's beta and gamma, by name."""

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

Groups = Mapping[Hashable, Counts]
"""Places (n,) in a batch of the images of each group, such as a domain or a tenth of the stream."""


def group_images(names: Sequence[Hashable]) -> Groups:
    """The groups of a batch by what each image is in, in the order of their first appearance."""
    places: dict[Hashable, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return {name: np.array(found) for name, found in places.items()}


class Totals(NamedTuple):
    """Sums over the images of a batch."""

    probabilities: Floats  # (K,)
    predicted: Counts  # (K,)
    labels: Counts  # (K,)
    hits: Counts  # (K,)
    overconfidence: Floats  # (bins,)
    losses: float
    squared_losses: float


@dataclass(frozen=True, eq=False)
class Scores:
    """What predictions came to for each image of a batch: all that is summed over a stream and its parts.

    In numpy, which takes a fraction of torch's time for so few numbers.
    """

    labels: Counts  # (B,)
    predictions: Counts  # (B,)
    probabilities: Floats  # (B, K)
    losses: Floats  # (B,), negative log-likelihoods of the labels
    bins: Counts  # (B,), of confidence
    overconfidence: Floats  # (B,), confidence less whether the prediction is right

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor) -> Scores:
        """From logits (B, K) and labels (B,), both on the CPU."""
        return cls.of_each(logits[None], labels)[0]

    @classmethod
    def of_each(cls, logits: Tensor, labels: Tensor) -> list[Scores]:
        """Those of R methods on the same images, from logits (R, B, K), in little more time than those of one."""
        log_probabilities = logits.double().log_softmax(dim=-1)
        probabilities, truth = log_probabilities.exp().numpy(), labels.numpy()
        predictions, confidences = probabilities.argmax(axis=-1), probabilities.max(axis=-1)  # (R, B)
        losses = -log_probabilities.numpy()[:, np.arange(len(truth)), truth]
        bins = np.minimum(np.ceil(confidences * CALIBRATION_BINS), CALIBRATION_BINS).astype(np.int64) - 1  # (low, high]
        overconfidence = confidences - (predictions == truth)
        columns = zip(predictions, probabilities, losses, bins, overconfidence, strict=True)
        return [cls(truth, *each) for each in columns]

    def select(self, places: Counts) -> Scores:
        """Those of some images; of all of them, without a copy."""
        if len(places) == len(self.labels):
            return self
        return Scores(*(getattr(self, column.name)[places] for column in fields(self)))

    @functools.cached_property
    def totals(self) -> Totals:
        """Made once, also where a batch is all in one domain and in one tenth of the stream."""
        count = partial(np.bincount, minlength=self.probabilities.shape[1])
        return Totals(
            self.probabilities.sum(axis=0),
            count(self.predictions),
            count(self.labels),
            count(self.labels[self.predictions == self.labels]),
            cast(Floats, np.bincount(self.bins, self.overconfidence, CALIBRATION_BINS)),
            float(self.losses.sum()),
            float(self.losses @ self.losses),
        )


class StreamMetrics:
    """Sums over a stream from which accuracy, prediction bias, calibration and class histograms follow."""

    def __init__(self, classes: int):
        self.samples = 0
        self.probabilities: Floats = np.zeros(classes)  # (K,)
        self.predicted: Counts = np.zeros(classes, np.int64)
        self.labels: Counts = np.zeros(classes, np.int64)
        self.hits: Counts = np.zeros(classes, np.int64)  # right predictions by class
        self.losses = 0.0  # negative log-likelihoods of the labels
        self.squared_losses = 0.0
        self.overconfidence: Floats = np.zeros(CALIBRATION_BINS)  # sum of confidence - correctness
        self.strengths: dict[str, float] = {}  # summed over images

    def update(self, scores: Scores, strengths: Strengths | None = None) -> None:
        """Add a batch, and how much of an offset was subtracted from it."""
        images = len(scores.labels)
        self.samples += images
        for name, total in scores.totals._asdict().items():
            setattr(self, name, getattr(self, name) + total)
        for name, strength in (strengths or {}).items():
            if strength is not None:
                self.strengths[name] = self.strengths.get(name, 0.0) + strength * images

    @property
    def accuracy(self) -> float:
        return int(self.hits.sum()) / self.samples

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

    @property
    def mean_beta(self) -> float | None:
        return self._mean_strength("beta")

    @property
    def mean_gamma(self) -> float | None:
        return self._mean_strength("gamma")

    def _mean_strength(self, name: str) -> float | None:
        return self.strengths[name] / self.samples if name in self.strengths else None

    @property
    def recalls(self) -> Floats:
        """Accuracy on the images of each class that has any."""
        present = self.labels > 0
        return self.hits[present] / self.labels[present]


def prediction_bias(mean_probabilities: Floats, label_frequencies: Floats) -> float:
    """L1 distance (0 to 2) between how often classes are predicted, softly, and how often they occur."""
    return float(np.abs(mean_probabilities - label_frequencies).sum())


class GroupedMetrics:
    """Metrics of groups of images, such as domains or tenths of a stream, in the order of their first appearance."""

    def __init__(self, classes: int):
        self.groups: dict[Hashable, StreamMetrics] = defaultdict(partial(StreamMetrics, classes))

    def update(self, groups: Groups, scores: Scores, strengths: Strengths | None = None) -> None:
        """Add a batch; `groups` says where its images belong."""
        for group, places in groups.items():
            self.groups[group].update(scores.select(places), strengths)
