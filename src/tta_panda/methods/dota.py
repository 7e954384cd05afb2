"""DOTA (Han et al. 2025, "Distributional Test-Time Adaptation of Vision-Language Models")."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.features import Encoded
from tta_panda.methods.oga import log_likelihoods
from tta_panda.methods.views import ConfidentViewMethod
from tta_panda.options import NonNegative, Share

START_MEAN = 1e-3
START_VARIANCE = 2e-3


class DOTA(ConfidentViewMethod):
    """Adds the log-likelihoods of Gaussians with a shared covariance, which follow the stream, to the text's logits.

    Images are processed one by one, in the order of the batch, and weighted by their predictions, so that none is
    stored. Gaussians are fitted to plain features; predictions are debiased.

    The publication estimates the covariance of every class, which takes K x D x D numbers, and uses only their mean.
    Here, only the mean is estimated, as if all classes had it: the two differ where classes are seen unequally often.

    The defaults are those of DOTA's own code for other data sets than ImageNet.

    Args:
        growth: weight of the Gaussians per image of a class that they have seen, with one view.
        max_weight: upper limit of that weight.
        shrinkage: weight of the identity in the covariance.
    """

    growth: NonNegative = 0.02
    max_weight: NonNegative = 0.3
    shrinkage: Share = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = self.classifier.class_embeddings
        self.means: Tensor
        self.add_state("means", torch.full_like(texts, START_MEAN))
        self.covariance: Tensor
        self._identity = torch.eye(texts.shape[1], dtype=texts.dtype, device=texts.device)
        self.add_state("covariance", START_VARIANCE * self._identity)
        self.counts: Tensor
        self.add_state("counts", texts.new_ones(len(texts)))

    def _adapt(self, encoded: Encoded) -> Tensor:
        assert encoded.views is not None
        logits = self.view_logits(encoded)
        views, logits = (self.confident(each, logits) for each in (F.normalize(encoded.views, dim=-1), logits))
        return torch.stack([self._add(*image) for image in zip(views, logits, strict=True)])

    def _add(self, views: Tensor, logits: Tensor) -> Tensor:
        """Return logits (K,) of an image with these views (V, D) and logits (V, K), and update the Gaussians."""
        covariance = torch.lerp(self.covariance, self._identity, self.shrinkage)
        by_distribution = log_likelihoods(views.mean(dim=0, keepdim=True), self.means, covariance)[0]
        weight = (self.growth * self.counts.mean() / len(views)).clamp_max(self.max_weight)

        shares = logits.softmax(dim=-1)  # (V, K)
        counts = self.counts + shares.sum(dim=0)
        rates = shares / counts / len(counts)
        products = views.T @ rates @ self.means
        scatter = (views.T * rates.sum(dim=1)) @ views + (self.means.T * rates.sum(dim=0)) @ self.means
        self.covariance = (1 - rates.sum()) * self.covariance + scatter - products - products.T
        self.means = (self.counts[:, None] * self.means + shares.T @ views) / counts[:, None]
        self.counts = counts
        return logits.mean(dim=0) + weight * by_distribution
