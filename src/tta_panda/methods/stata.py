"""StatA (Zanella et al. 2025, "Realistic Test-Time Adaptation of Vision-Language Models")."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.methods.losses import top_class
from tta_panda.options import Count, NonNegative, NonNegativeInt

SOFTNESS = 50.0
"""Divisor of the log-likelihoods, relative to the text's prediction."""

MIN_VARIANCE = 1e-12


class Gaussians(NamedTuple):
    """A Gaussian with a diagonal covariance for each class."""

    means: Tensor  # (K, D)
    variances: Tensor  # (K, D)

    def select(self, classes: Tensor) -> Gaussians:
        return Gaussians(self.means[classes], self.variances[classes])

    def log_likelihoods(self, features: Tensor) -> Tensor:
        """Return log-likelihoods (B, K) of features (B, D), up to a constant.

        The square is expanded, because all differences at once would be a tensor (B, K, D).
        """
        scaled = self.means / self.variances
        constants = torch.addcmul(self.variances.log(), self.means, scaled).sum(dim=-1)
        squares = torch.addmm(constants, features.square(), self.variances.reciprocal().T)
        return torch.addmm(squares, features, scaled.T, beta=-0.5)


class StatA(FrozenMethod):
    """Fits one Gaussian per class to a batch, anchored at the texts, and encourages neighbouring images to agree.

    Nothing is kept from batch to batch. Gaussians and neighbours are computed on plain features, and text logits on
    debiased ones.

    The defaults are those of StatA's own code, the same for all data sets; it was not evaluated on corruptions.

    Args:
        steps: number of updates of the Gaussians.
        inner_steps: number of updates of the assignments before each of these, and at the end.
        neighbours: number of nearest other images that an image should agree with.
        text_weight: exponent of the text's prediction.
        alpha: weight of the text of a class in its Gaussian, as a number of images.
    """

    steps: NonNegativeInt = 10
    inner_steps: Count = 5
    neighbours: Count = 3
    text_weight: NonNegative = 1.0
    alpha: NonNegative = 1.0

    def _adapt(self, encoded: Encoded) -> Tensor:
        by_text = self.classify(encoded).log_softmax(dim=-1)  # (B, K)
        features = F.normalize(encoded.features, dim=-1)
        agreement = _nearest(features, self.neighbours) / (2 * self.neighbours)  # (B, B)
        anchor = _anchor(features, F.normalize(self.classifier.class_embeddings, dim=-1), by_text.exp())
        anchored = anchor.log_likelihoods(features)  # (B, K)
        at_texts = torch.add(self.text_weight * by_text, anchored, alpha=1 / SOFTNESS)
        unary, logits, shares = at_texts, torch.empty_like(by_text), by_text.exp()
        for step in range(self.steps + 1):
            if step:  # classes without assigned images keep the Gaussians at their texts
                labels = top_class(shares)  # (B,), some classes more than once, which saves a GPU from counting them
                counts = (labels[:, None] == labels).sum(dim=1, keepdim=True, dtype=shares.dtype)
                fitted = self._fit(features, shares[:, labels], counts, anchor.select(labels))
                moved = fitted.log_likelihoods(features) - anchored[:, labels]
                unary = at_texts.index_copy(1, labels, torch.add(at_texts[:, labels], moved, alpha=1 / SOFTNESS))
            for _ in range(self.inner_steps):
                torch.addmm(unary, agreement, shares, out=logits)
                torch.softmax(logits, dim=-1, out=shares)
        return logits.log_softmax(dim=-1)

    def _fit(self, features: Tensor, shares: Tensor, counts: Tensor, anchor: Gaussians) -> Gaussians:
        """Fit the Gaussians of k classes to images with soft assignments (B, k), anchored at the texts."""
        weights = (shares / shares.sum(dim=0)).T  # (k, B)
        trust = counts / (counts + self.alpha)  # (k, 1)
        own_means = weights @ features
        means = F.normalize(anchor.means.lerp(F.normalize(own_means, dim=-1), trust), dim=-1)
        own = torch.addcmul(weights @ features.square(), means, means - 2 * own_means).clamp_min_(0)
        difference = anchor.means - means
        variances = torch.addcmul(anchor.variances, difference, difference).lerp_(own, trust)
        return Gaussians(means, variances.clamp_min_(MIN_VARIANCE))


def _anchor(features: Tensor, texts: Tensor, predicted: Tensor) -> Gaussians:
    """Return Gaussians around texts (K, D), with the variance of features (B, D) around predicted (B, K) texts."""
    squares = features.square().sum(dim=0) - 2 * (predicted.T @ features * texts).sum(dim=0)
    variance = (squares + predicted.sum(dim=0) @ texts.square()) / len(features)  # (D,)
    return Gaussians(texts, variance.clamp_min(MIN_VARIANCE).expand_as(texts))


def _nearest(features: Tensor, count: int) -> Tensor:
    """Return symmetric affinities (B, B): the cosines between images and their `count` nearest others, else zero."""
    cosines = features @ features.T
    others = cosines.masked_fill(torch.eye(len(features), dtype=torch.bool, device=features.device), -torch.inf)
    nearest = others.topk(min(count, len(features) - 1), dim=1).indices
    weights = torch.zeros_like(cosines).scatter_(1, nearest, cosines.gather(1, nearest))
    both = weights + weights.T
    return both.to_sparse() if both.device.type == "cpu" else both  # most are zero
