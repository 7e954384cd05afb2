"""StatA (Zanella et al. 2025, "Realistic Test-Time Adaptation of Vision-Language Models")."""

from __future__ import annotations

from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.methods.base import FrozenMethod, MethodOptions
from tta_panda.methods.batch import Encoded
from tta_panda.models.base import Classifier

SOFTNESS = 50.0
"""What log-likelihoods are divided by beside the text's prediction."""

SMALLEST_VARIANCE = 1e-12


class Gaussians(NamedTuple):
    """One with a diagonal covariance for each class."""

    means: Tensor  # (K, D)
    variances: Tensor  # (K, D)

    def log_likelihoods(self, features: Tensor) -> Tensor:
        """(B, K) of features (B, D), up to a constant. Expanded, as all differences at once would be (B, K, D)."""
        scaled = self.means / self.variances
        squares = features.square() @ self.variances.reciprocal().T - 2 * features @ scaled.T
        return -(squares + (self.means * scaled + self.variances.log()).sum(dim=-1)) / 2


class StatA(FrozenMethod):
    """Fits one Gaussian per class to a batch, anchored at the texts, with neighbouring images agreeing.

    Nothing is kept from batch to batch. Gaussians and neighbours are of plain features; text logits come from debiased
    ones.

    The defaults are those of StatA's own code, the same for all data sets; it was not tried on corruptions.

    Args:
        steps: updates of the Gaussians.
        inner_steps: updates of the assignments for each of these, and at the end.
        neighbours: how many of the nearest other images an image should agree with.
        text_weight: exponent of the text's prediction.
        alpha: images that the text of a class counts for in its Gaussian.
        common: the arguments of every method.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        steps: int = 10,
        inner_steps: int = 5,
        neighbours: int = 3,
        text_weight: float = 1.0,
        alpha: float = 1.0,
        **common: Unpack[MethodOptions],
    ):
        super().__init__(classifier, **common)
        check_range("steps", steps, 0)
        check_range("inner_steps", inner_steps, 1)
        check_range("neighbours", neighbours, 1)
        check_range("text_weight", text_weight, 0)
        check_range("alpha", alpha, 0)
        self.steps = steps
        self.inner_steps = inner_steps
        self.neighbours = neighbours
        self.text_weight = text_weight
        self.alpha = alpha

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        by_text = self.classify(encoded).log_softmax(dim=-1)  # (B, K)
        features = F.normalize(encoded.features, dim=-1)
        agreement = _nearest(features, self.neighbours) * SOFTNESS / (2 * self.neighbours)  # (B, B)
        anchor = _anchor(features, F.normalize(self.classifier.class_embeddings, dim=-1), by_text.exp())
        gaussians, assigned = anchor, by_text
        for step in range(self.steps + 1):
            if step:
                gaussians = self._fit(features, assigned, anchor)
            log_likelihoods = gaussians.log_likelihoods(features)
            for _ in range(self.inner_steps):
                evidence = (log_likelihoods + agreement @ assigned.exp()) / SOFTNESS
                assigned = (self.text_weight * by_text + evidence).log_softmax(dim=-1)
        return assigned

    def _fit(self, features: Tensor, assigned: Tensor, anchor: Gaussians) -> Gaussians:
        """The Gaussians of images that are assigned by log-probabilities (B, K), each between theirs and the text's."""
        shares = assigned.exp()
        weights = (shares / shares.sum(dim=0).clamp_min(torch.finfo(shares.dtype).tiny)).T  # (K, B)
        counts = assigned.argmax(dim=1).bincount(minlength=len(weights))[:, None]  # (K, 1)
        trust = torch.where(counts > 0, counts / (counts + self.alpha), 0.0)
        means = F.normalize(trust * F.normalize(weights @ features, dim=-1) + (1 - trust) * anchor.means, dim=-1)
        own = (weights @ features.square() - 2 * means * (weights @ features) + means.square()).clamp_min(0)
        variances = trust * own + (1 - trust) * (anchor.variances + (anchor.means - means).square())
        return Gaussians(means, variances.clamp_min(SMALLEST_VARIANCE))


def _anchor(features: Tensor, texts: Tensor, predicted: Tensor) -> Gaussians:
    """Gaussians around texts (K, D), with the variance that features (B, D) have around what is predicted (B, K)."""
    squares = features.square().sum(dim=0) - 2 * (predicted.T @ features * texts).sum(dim=0)
    variance = (squares + predicted.sum(dim=0) @ texts.square()) / len(features)  # (D,)
    return Gaussians(texts, variance.clamp_min(SMALLEST_VARIANCE).expand_as(texts))


def _nearest(features: Tensor, count: int) -> Tensor:
    """Cosines (B, B) of images with their `count` nearest others and with those whose nearest they are; else zero."""
    cosines = features @ features.T
    others = cosines.masked_fill(torch.eye(len(features), dtype=torch.bool, device=features.device), -torch.inf)
    nearest = others.topk(min(count, len(features) - 1), dim=1).indices
    weights = torch.zeros_like(cosines).scatter_(1, nearest, cosines.gather(1, nearest))
    return weights + weights.T
