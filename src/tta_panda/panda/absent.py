"""Levels of similarity that a stream shows without labels: where a class is absent, and where nothing is present."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_panda.panda.running import Running, decay

PRIOR = 0.02
"""Every image also counts this much as one of mean similarity to all classes, so that every class has some weight."""


CAUTION = 1.5
"""How many times over chance must be beaten for two vectors to agree."""


NOISE = (0.95, 1.05)
"""Ratio of the largest upward to the largest downward deviation: below, a stream shows no variety; above, full."""


class RunningMean(Running):
    """Mean (K,) over the images of a stream of what they are given, batch by batch."""

    def __init__(self, half_life: float | None = None):
        self.half_life = half_life
        super().__init__()

    def reset(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64)  # (K,)
        self.weight = 0.0

    def update(self, values: Tensor, images: int) -> Tensor:
        """The mean after one more batch of images, with values (1 or B, K)."""
        kept = decay(images, self.half_life)
        self.total = kept * self.total + images * values.cpu().mean(dim=0, dtype=torch.float64)
        self.weight = kept * self.weight + images
        return self.total / self.weight


class AbsentLevel(Running):
    """Mean similarity of each class over the images that are not of it, estimated along a stream without labels.

    An image counts for class k by `(1 - p_k) ** exponent`, where p is what some predictions say of it. So unlike the
    mean over all images, the level hardly depends on how often a class occurs: where it does, its images do not count.
    """

    def __init__(self, exponent: float, half_life: float):
        self.exponent = exponent
        self.half_life = half_life
        super().__init__()

    def reset(self) -> None:
        self.total = self.weight = torch.zeros((), dtype=torch.float64)  # (K,)

    def update(self, similarities: Tensor, probabilities: Tensor) -> Tensor:
        """Centred levels (K,) after one more batch of similarities and predicted probabilities (B, K)."""
        absent = (1 - probabilities) ** self.exponent
        prior, kept = PRIOR * len(similarities), decay(len(similarities), self.half_life)
        self.total = kept * self.total + _sum(absent * similarities) + prior * similarities.mean(dtype=torch.float64)
        self.weight = kept * self.weight + _sum(absent) + prior
        return centred(self.total / self.weight)


class Variety(Running):
    """Whether images differ as images of several classes do, from 0 to 1. Needs no predictions.

    Among several classes, an image stands out from the mean by much in its own class, upward, and by less in each of
    the others, downward. In a stream of a single class, images differ by noise, which goes down as far as up. With two
    classes up and down are the same by construction, which gives 1/2.
    """

    def __init__(self, half_life: float):
        self.half_life = half_life
        super().__init__()

    def reset(self) -> None:
        self.mean = RunningMean(self.half_life)
        self.upward = self.downward = 0.0

    def update(self, similarities: Tensor) -> float:
        """After one more batch of similarities (B, K)."""
        deviations = similarities - self.mean.update(similarities, len(similarities)).to(similarities.dtype)
        deviations = deviations - deviations.mean(dim=1, keepdim=True)
        kept = decay(len(similarities), self.half_life)
        self.upward = kept * self.upward + float(deviations.amax(dim=1).sum())
        self.downward = kept * self.downward - float(deviations.amin(dim=1).sum())
        low, high = NOISE
        ratio = self.upward / self.downward if self.downward > 0 else 0.0
        return min(1.0, max(0.0, (ratio - low) / (high - low)))


def _sum(values: Tensor) -> Tensor:
    """Of (B, K) over images, in the precision of what is summed up along a stream."""
    return values.sum(dim=0, dtype=torch.float64)


def centred(values: Tensor) -> Tensor:
    """The values (K,) without what they have in common, which changes no prediction."""
    return values - values.mean()


def correlation(first: Tensor, second: Tensor) -> float:
    """Of two centred vectors (K,); 0 where one of them is constant."""
    norms = float(first.norm() * second.norm())
    return float(first @ second) / norms if norms > 0 else 0.0


def agreement(level: Tensor, offset: Tensor, directions: float) -> float:
    """How far two centred vectors (K,) agree beyond chance, from 0 to 1.

    A bias that images and negatives share is the corruption's. What chance explains of their agreement is taken away,
    `CAUTION` times over: similarities to classes that differ in n directions only are correlated as n numbers are,
    however many classes there are. Vectors of two classes always agree or always disagree, which says nothing, so these
    give 0.
    """
    return 0.0 if len(level) == 2 else beyond_chance(correlation(level, offset), CAUTION / directions)


def beyond_chance(r: float, chance: float) -> float:
    """What is left of a correlation, from 0 to 1, where unrelated vectors have the square `chance`."""
    return max(0.0, 1 - chance * (1 - r**2) / r**2) if r > 0 else 0.0
