"""Statistics of similarities along a stream, without labels.

Shapes: B images, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tta_panda.state import Stateful
from tta_panda.transfers import to_device

PRIOR = 0.02
"""Weight of a prior per image, with equal similarities to all classes, so that each class has a positive weight."""

CAUTION = 1.5
"""Factor by which agreement must exceed chance."""

NOISE = (0.95, 1.05)
"""Ratios of upward to downward deviations: lower than the first for a single class, higher than the second for many."""


class RunningMean(Stateful):
    """Running mean over the images of a stream; after `half_life` images, an earlier image counts half as much."""

    def __init__(self, half_life: float):
        super().__init__()
        self.half_life = half_life
        self.total = self.add_state("total", torch.zeros((), dtype=torch.float32, device="cpu"))
        self.weight = self.add_state("weight", 0.0)

    def update(self, mean: Tensor, images: int) -> Tensor:
        """Add the mean of a batch of this many images, and return the running mean."""
        kept = decay(images, self.half_life)
        self.total = kept * to_device(self.total, mean.device) + images * mean
        self.weight = kept * self.weight + images
        return self.value

    @property
    def value(self) -> Tensor:
        """The mean so far; NaN before the first batch."""
        return self.total / (self.weight or math.nan)


class AbsentLevel(Stateful):
    """Running mean similarity of each class over the images of other classes.

    The weight of an image for class k is `(1 - p_k) ** exponent`, where p are predicted probabilities. So images of the
    class itself hardly count, and unlike the mean over all images, the level hardly depends on class frequencies.
    """

    def __init__(self, exponent: float, half_life: float):
        super().__init__()
        self.exponent = exponent
        self.similarity = self.add_state("similarity", RunningMean(half_life))  # (K,), weighted
        self.weight = self.add_state("weight", RunningMean(half_life))  # (K,)

    def update(self, similarities: Tensor, probabilities: Tensor) -> Tensor:
        """Add a batch of similarities and predicted probabilities (B, K), and return the centred levels (K,)."""
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
    """Estimate of whether a stream has several classes, from 0 to 1, without predictions.

    With several classes, the similarities of an image deviate from the mean by a large amount upward for its own class,
    and by less downward for each of the others. Images of a single class differ by noise, which is symmetric. With two
    classes, deviations are symmetric by construction, which gives 1/2.
    """

    def __init__(self, half_life: float):
        super().__init__()
        self.mean = self.add_state("mean", RunningMean(half_life))  # (K,)
        self.extremes = self.add_state("extremes", RunningMean(half_life))  # (2,), the largest deviations up and down

    def update(self, similarities: Tensor) -> Tensor:
        """Add a batch of similarities (B, K), and return the diversity ()."""
        images = len(similarities)
        deviations = similarities - self.mean.update(batch_mean(similarities), images).to(similarities.dtype)
        deviations = deviations - deviations.mean(dim=1, keepdim=True)
        extremes = torch.stack([deviations.amax(dim=1), -deviations.amin(dim=1)], dim=1)  # (B, 2)
        self.extremes.update(batch_mean(extremes), images)
        return self.value

    @property
    def value(self) -> Tensor:
        """The diversity () of the stream so far."""
        return self.between(*NOISE)

    def between(self, low: float, high: float) -> Tensor:
        """Return where the ratio of upward to downward deviations lies between two values, from 0 to 1."""
        upward, downward = self.extremes.value
        ratio: Tensor = (upward / downward).where(downward > 0, 0.0)
        return ratio.sub(low).div(high - low).clamp(0, 1)


def batch_mean(values: Tensor) -> Tensor:
    """Return the mean over the images of (B, ...), in double precision."""
    return values.mean(dim=0, dtype=torch.float64)


def decay(images: int, half_life: float) -> float:
    """Return the factor by which a sum decays over this many images."""
    return math.pow(0.5, images / half_life)


def centred(values: Tensor) -> Tensor:
    """Subtract the mean from values (K,); this does not change predictions."""
    return values - values.mean()


def correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return the correlation () of two centred vectors (K,); 0 if one of them is constant."""
    norms = first.norm() * second.norm()
    return torch.where(norms > 0, first @ second / norms, 0.0)


def largest(values: Tensor, class_names: Sequence[str]) -> str:
    """List the classes of the three largest positive values (K,), as in "cat, dog and bird"."""
    *others, last = [class_names[k] for k in values.topk(min(3, len(values))).indices if values[k] > 0] or ["no class"]
    return f"{', '.join(others)} and {last}" if others else last


def agreement(level: Tensor, offset: Tensor, directions: float | Tensor) -> Tensor:
    """Return the agreement () of two centred vectors (K,) beyond chance, from 0 to 1.

    A bias that images and negatives share comes from the corruption. `CAUTION` times the agreement expected by chance
    is subtracted: if class embeddings differ in n directions only, similarities correlate by chance like n numbers,
    even for many classes. Vectors of two classes are always perfectly correlated or anticorrelated, so the result is 0.
    """
    r = correlation(level, offset)
    if len(level) == 2:
        return torch.zeros_like(r)
    chance = CAUTION / directions * (1 - r**2) / r**2
    return torch.where(r > 0, (1 - chance).clamp_min(0), 0.0)
