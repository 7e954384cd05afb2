"""OGA (Fuchs et al. 2025, "Online Gaussian Test-Time Adaptation of Vision-Language Models")."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.methods.image_cache import Entries, empty_cache, make_entries, update_cache
from tta_panda.options import Count, NonNegative
from tta_panda.transfers import to_device

MIN_FOR_MEAN = 2
"""Minimum number of entries of a class for its mean to replace the text."""

MIN_FOR_COVARIANCE = 3
"""Minimum number of entries of at least one class for the covariance to be estimated."""


class OGA(FrozenMethod):
    """Models classes as Gaussians with a shared covariance, fitted to certain images; text predictions are the prior.

    A batch enters the cache first and is then classified as a whole. Gaussians are fitted to plain features, and once
    all means come from images, a shift of all features does not change the likelihoods; text logits are computed on
    debiased features.

    The defaults are those of OGA's own code, the same for all data sets; it was not evaluated on corruptions.

    Args:
        slots: maximum number of images per class in the cache; a more certain image replaces the least certain one.
        temperature: factor of the log-likelihoods, relative to the prior.
    """

    slots: Count = 8
    temperature: NonNegative = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        self.cache: Entries
        self.add_state("cache", empty_cache(self.classifier.class_embeddings))

    def _adapt(self, encoded: Encoded) -> Tensor:
        prior = self.classify(encoded).log_softmax(dim=-1)  # (B, K)
        features = F.normalize(encoded.features, dim=-1)
        seen = make_entries(features, prior)
        # Images with a uniform prediction do not enter, even if a slot is free.
        is_certain = seen["entropies"] < math.log(prior.shape[1])
        self.cache = update_cache(self.cache, seen, self.slots, is_certain).apply()
        log_likelihoods = self._log_likelihoods(features)
        return (prior + (self.temperature * log_likelihoods).log_softmax(dim=-1)).log_softmax(dim=-1)

    def _log_likelihoods(self, features: Tensor) -> Tensor:
        """Return log-likelihoods (B, K) of features (B, D), up to a constant per image."""
        entries, labels = self.cache["features"], to_device(self.cache["labels"], features.device)
        texts = F.normalize(self.classifier.class_embeddings, dim=-1)
        per_class = self.cache["labels"].bincount(minlength=len(texts))
        counts = to_device(per_class, features.device)[:, None]  # (K, 1)
        sums = torch.zeros_like(texts).index_add_(0, labels, entries)
        # The authors' code divides by the number of slots, even if some are free.
        means = torch.where(counts < MIN_FOR_MEAN, texts, sums / (self.slots if self.follows_reference else counts))
        if per_class.max() >= MIN_FOR_COVARIANCE:
            covariance = _covariance(entries - means[labels])
        else:
            covariance = torch.eye(entries.shape[1], dtype=entries.dtype, device=entries.device) / entries.shape[1]
        return log_likelihoods(features, means, covariance)


def log_likelihoods(features: Tensor, means: Tensor, covariance: Tensor) -> Tensor:
    """Return log-likelihoods (B, K) of features (B, D) under Gaussians with one covariance, up to a constant."""
    whitened = _whitened(torch.cat([features, means]), covariance)
    points, centres = whitened[: len(features)], whitened[len(features) :]
    return points @ centres.T - centres.square().sum(dim=-1) / 2


def _covariance(residuals: Tensor) -> Tensor:
    """Return the covariance (D, D) of residuals (N, D), shrunk if N is small relative to D."""
    count, size = residuals.shape
    centred = residuals - residuals.mean(dim=0)
    scatter = centred.T @ centred
    if count > 4 * size:
        return scatter / (count - 1)
    spread = scatter.trace() / (count - 1)
    return (scatter + spread * torch.eye(size, dtype=scatter.dtype, device=scatter.device)) / size


def _whitened(vectors: Tensor, covariance: Tensor) -> Tensor:
    """Whiten vectors (N, D), so that their dot products are Mahalanobis products for a covariance (D, D).

    A triangular system is solved, which is faster than an inverse for large D. If the covariance is singular,
    directions without variance are dropped, as in a pseudo-inverse.
    """
    # MPS lacks some of these functions.
    device = torch.device("cpu") if vectors.device.type == "mps" else vectors.device
    rows, matrix = vectors.to(device), covariance.to(device)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        variances, directions = torch.linalg.eigh(matrix)
        is_negligible = variances <= len(matrix) * torch.finfo(matrix.dtype).eps * variances.abs().max()
        whitened: Tensor = rows @ (directions * variances.rsqrt().masked_fill(is_negligible, 0.0))
    else:
        whitened = torch.linalg.solve_triangular(factor.mT, rows, upper=True, left=False)
    return whitened.to(vectors.device)
