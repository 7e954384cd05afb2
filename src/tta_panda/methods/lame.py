"""LAME (Boudiaf et al. 2022, "Parameter-free Online Test-time Adaptation")."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.options import Count

TOLERANCE = 1e-7
"""Assignments have converged if they change by no more than this."""

STEPS_PER_CHECK = 10
"""Convergence is checked once in this many steps, as it makes a GPU wait."""


class LAME(FrozenMethod):
    """Encourages similar images of a batch to share a class, starting from the text's predictions.

    Nothing is kept from batch to batch. Similarities are computed on plain features, and text logits on debiased ones.
    Accuracy rises if neighbours in a stream share their class, and falls on shuffled streams of many classes.

    Args:
        affinity: affinity between images: `"rbf"` for a Gaussian kernel between all images, whose width is the mean
            distance to the furthest of the nearest neighbours, or `"knn"` for 1 between nearest neighbours only.
        neighbours: number of nearest neighbours of an image.
        steps: maximum number of updates of the assignments.
    """

    affinity: Literal["rbf", "knn"] = "rbf"
    neighbours: Count = 5
    steps: Count = 100

    def _adapt(self, encoded: Encoded) -> Tensor:
        by_text = self.classify(encoded).log_softmax(dim=-1)  # (B, K)
        if len(by_text) == 1:  # no neighbours
            return by_text
        affinity = self._affinity(F.normalize(encoded.features, dim=-1))  # (B, B)
        logits, shares = by_text, by_text.exp()
        for step in range(1, self.steps + 1):
            logits = (by_text + affinity @ shares).log_softmax(dim=-1)
            before, shares = shares, logits.exp()
            if step % STEPS_PER_CHECK == 0 and (shares - before).abs().max() <= TOLERANCE:
                break
        return logits

    def _affinity(self, features: Tensor) -> Tensor:
        """Return the affinities (B, B) between images with features (B, D)."""
        distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")  # exact if similar
        others = distances.clone().fill_diagonal_(torch.inf)
        nearest = others.topk(min(self.neighbours, len(features) - 1), dim=1, largest=False)
        if self.affinity == "knn":
            weights = torch.zeros_like(distances).scatter_(1, nearest.indices, 1.0)
            return (weights + weights.T) / 2
        width = nearest.values[:, -1].mean().clamp_min(1e-6)
        return (-(distances / width).square() / 2).exp()
