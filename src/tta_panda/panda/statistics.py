"""Statistics of the similarities of a stream, without labels.

Shapes: B images, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tta_panda.state import Stateful

PRIOR = 0.02
"""Every image also counts this much as one of mean similarity to all classes, so that every class has some weight."""

CAUTION = 1.5
"""Agreement must exceed this many times what chance gives."""

NOISE = (0.95, 1.05)
"""Ratio of upward to downward deviations: images of one class stay below the first, of many are above the second."""


class RunningMean(Stateful):
    """Mean over the images of a stream; after `half_life` images, an earlier one counts half as much."""

    def __init__(self, half_life: float):
        super().__init__()
        self.half_life = half_life
        self.total = self.add_state("total", torch.zeros((), dtype=torch.float32, device="cpu"))
        self.weight = self.add_state("weight", 0.0)

    def update(self, mean: Tensor, images: int) -> Tensor:
        """The mean after one more batch of this many images, from the mean of the batch."""
        kept = decay(images, self.half_life)
        self.total = kept * self.total.to(mean.device) + images * mean
        self.weight = kept * self.weight + images
        return self.value

    @property
    def value(self) -> Tensor:
        """The mean so far; NaN before the first batch."""
        return self.total / (self.weight or math.nan)


class AbsentLevel(Stateful):
    """Mean similarity of each class over the images that are not of it.

    An image counts for class k by `(1 - p_k) ** exponent`, where p are predicted probabilities. So unlike the mean over
    all images, the level hardly depends on how often a class occurs: images of the class itself do not count.
    """

    def __init__(self, exponent: float, half_life: float):
        super().__init__()
        self.exponent = exponent
        self.similarity = self.add_state("similarity", RunningMean(half_life))  # (K,), weighted
        self.weight = self.add_state("weight", RunningMean(half_life))  # (K,)

    def update(self, similarities: Tensor, probabilities: Tensor) -> Tensor:
        """Centred levels (K,) after one more batch of similarities and predicted probabilities (B, K)."""
        absent = (1 - probabilities) ** self.exponent
        similarity = batch_mean(absent * similarities) + PRIOR * similarities.mean(dtype=torch.float64)
        weight = batch_mean(absent) + PRIOR
        self.similarity.update(similarity, len(similarities))
        self.weight.update(weight, len(similarities))
        return self.value

    @property
    def value(self) -> Tensor:
        """Centred levels (K,) of the stream so far."""
        return centred(self.similarity.value / self.weight.value)


class ClassDiversity(Stateful):
    """Whether images differ as images of several classes do, from 0 to 1. Needs no predictions.

    Among several classes, an image deviates from the mean by much in its own class, upward, and by less in each of the
    others, downward. Images of a single class differ by noise, which goes down as far as up. With two classes up and
    down are the same by construction, which gives 1/2.
    """

    def __init__(self, half_life: float):
        super().__init__()
        self.mean = self.add_state("mean", RunningMean(half_life))  # (K,)
        self.extremes = self.add_state("extremes", RunningMean(half_life))  # (2,), the largest deviations up and down

    def update(self, similarities: Tensor) -> float:
        """The diversity after one more batch of similarities (B, K)."""
        images = len(similarities)
        deviations = similarities - self.mean.update(batch_mean(similarities), images).to(similarities.dtype)
        deviations = deviations - deviations.mean(dim=1, keepdim=True)
        extremes = torch.stack([deviations.amax(dim=1), -deviations.amin(dim=1)], dim=1)  # (B, 2)
        self.extremes.update(batch_mean(extremes), images)
        return self.value

    @property
    def value(self) -> float:
        """The diversity of the stream so far."""
        upward, downward = self.extremes.value.tolist()
        low, high = NOISE
        ratio = upward / downward if downward > 0 else 0.0
        return min(1.0, max(0.0, (ratio - low) / (high - low)))


def batch_mean(values: Tensor) -> Tensor:
    """The mean over the images of (B, ...), in double precision on the CPU."""
    return values.cpu().mean(dim=0, dtype=torch.float64)


def decay(images: int, half_life: float) -> float:
    """The share of a sum that remains after this many images."""
    return math.pow(0.5, images / half_life)


def centred(values: Tensor) -> Tensor:
    """Values (K,) minus their mean, which changes no prediction."""
    return values - values.mean()


def correlation(first: Tensor, second: Tensor) -> float:
    """Correlation of two centred vectors (K,); 0 where one of them is constant."""
    norms = float(first.norm() * second.norm())
    return float(first @ second) / norms if norms > 0 else 0.0


def largest(values: Tensor, class_names: Sequence[str]) -> str:
    """The classes of the three largest positive values (K,), as in "cat, dog and bird"."""
    *others, last = [class_names[k] for k in values.topk(min(3, len(values))).indices if values[k] > 0] or ["no class"]
    return f"{', '.join(others)} and {last}" if others else last


def agreement(level: Tensor, offset: Tensor, directions: float) -> float:
    """How far two centred vectors (K,) agree beyond chance, from 0 to 1.

    A bias that images and negatives share is the corruption's. `CAUTION` times the agreement that chance explains is
    subtracted: similarities to classes that differ in n directions only are correlated as n numbers are, however many
    classes there are. Vectors of two classes always agree or always disagree, so for these it is 0.
    """
    r = correlation(level, offset)
    if len(level) == 2 or r <= 0:
        return 0.0
    return max(0.0, 1 - CAUTION / directions * (1 - r**2) / r**2)
