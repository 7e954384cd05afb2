"""OGA (Fuchs et al. 2025, "Online Gaussian Test-Time Adaptation of Vision-Language Models")."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.methods.image_cache import Entries, empty_cache, update_cache
from tta_panda.methods.losses import entropy_of, top_class
from tta_panda.options import Count, NonNegative

MIN_FOR_MEAN = 2
"""Entries of a class from which its mean replaces the text."""

MIN_FOR_COVARIANCE = 3
"""Entries of any one class from which the covariance is estimated."""


class OGA(FrozenMethod):
    """Classes as Gaussians of one covariance around the certain images seen so far; the text's prediction is the prior.

    A batch enters the cache first and is then classified as a whole. The Gaussians are of plain features, and where
    all means come from images, a shift of all features leaves them alone; text logits come from debiased ones.

    The defaults are those of OGA's own code, the same for all data sets; it was not tried on corruptions.

    Args:
        slots: images of a class in the cache; a more certain one replaces the least certain.
        temperature: what log-likelihoods are multiplied with beside the prior.
    """

    slots: Count = 8
    temperature: NonNegative = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cache: Entries
        self.add_state("cache", empty_cache(self.classifier.class_embeddings))

    def _adapt(self, encoded: Encoded) -> Tensor:
        prior = self.classify(encoded).log_softmax(dim=-1)  # (B, K)
        features, entropies = F.normalize(encoded.features, dim=-1), entropy_of(prior)
        seen = {"features": features, "labels": top_class(prior), "entropies": entropies}
        # A prediction that is no better than chance does not enter, even where a slot is free.
        self.cache = update_cache(self.cache, seen, self.slots, entropies < math.log(prior.shape[1])).apply()
        log_likelihoods = self._log_likelihoods(features)
        return (prior + (self.temperature * log_likelihoods).log_softmax(dim=-1)).log_softmax(dim=-1)

    def _log_likelihoods(self, features: Tensor) -> Tensor:
        """(B, K) of features (B, D), up to what all classes have in common."""
        entries, labels = self.cache["features"], self.cache["labels"]
        texts = F.normalize(self.classifier.class_embeddings, dim=-1)
        counts = labels.bincount(minlength=len(texts))[:, None]  # (K, 1)
        sums = torch.zeros_like(texts).index_add_(0, labels, entries)
        # The authors' code divides by all slots, also where some are free.
        means = torch.where(counts < MIN_FOR_MEAN, texts, sums / (self.slots if self.follows_reference else counts))
        if counts.max() >= MIN_FOR_COVARIANCE:
            covariance = _covariance(entries - means[labels])
        else:
            covariance = torch.eye(entries.shape[1], dtype=entries.dtype, device=entries.device) / entries.shape[1]
        whitened = _whitened(torch.cat([features, means]), covariance)
        points, centres = whitened[: len(features)], whitened[len(features) :]
        return points @ centres.T - centres.square().sum(dim=-1) / 2


def _covariance(residuals: Tensor) -> Tensor:
    """Of residuals (N, D), shrunk where they are few for so many dimensions (D, D)."""
    count, size = residuals.shape
    centred = residuals - residuals.mean(dim=0)
    scatter = centred.T @ centred
    if count > 4 * size:
        return scatter / (count - 1)
    spread = scatter.trace() / (count - 1)
    return (scatter + spread * torch.eye(size, dtype=scatter.dtype, device=scatter.device)) / size


def _whitened(vectors: Tensor, covariance: Tensor) -> Tensor:
    """Vectors (N, D) such that products of them are products by way of the inverse covariance (D, D).

    A triangular system is solved, which takes less time than an inverse where D is large. Where there is no inverse,
    directions without variance are skipped, as by a pseudo-inverse.
    """
    device = torch.device("cpu") if vectors.device.type == "mps" else vectors.device  # which cannot compute all of this
    rows, matrix = vectors.to(device), covariance.to(device)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        variances, directions = torch.linalg.eigh(matrix)
        is_negligible = variances <= len(matrix) * torch.finfo(matrix.dtype).eps * variances.abs().max()
        whitened: Tensor = rows @ (directions * variances.rsqrt().masked_fill(is_negligible, 0.0))
    else:
        whitened = torch.linalg.solve_triangular(factor.mT, rows, upper=True, left=False)
    return whitened.to(vectors.device)
