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
"""Assignments that change by no more than this have converged."""


class LAME(FrozenMethod):
    """Similar images of a batch are pulled towards the same classes, starting from the text's predictions.

    Nothing is kept from batch to batch. Similarities are of plain features; text logits come from debiased ones. It
    gains where neighbours in a stream share their class, and loses on shuffled streams of many classes.

    Args:
        affinity: how images attract each other: `"rbf"` all of them by a Gaussian kernel as wide as the mean distance
            to the last of the nearest neighbours, or `"knn"` the nearest neighbours alone.
        neighbours: how many of the nearest other images count as neighbours.
        steps: at most this many updates of the assignments.
    """

    affinity: Literal["rbf", "knn"] = "rbf"
    neighbours: Count = 5
    steps: Count = 100

    def _adapt(self, encoded: Encoded) -> Tensor:
        by_text = self.classify(encoded).log_softmax(dim=-1)  # (B, K)
        if len(by_text) == 1:  # which has no neighbours
            return by_text
        affinity = self._affinity(F.normalize(encoded.features, dim=-1))  # (B, B)
        logits, shares = by_text, by_text.exp()
        for _ in range(self.steps):
            logits = (by_text + affinity @ shares).log_softmax(dim=-1)
            before, shares = shares, logits.exp()
            if (shares - before).abs().max() <= TOLERANCE:
                break
        return logits

    def _affinity(self, features: Tensor) -> Tensor:
        """How much images (B, D) attract each other (B, B)."""
        distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")  # exact where similar
        others = distances.clone().fill_diagonal_(torch.inf)
        nearest = others.topk(min(self.neighbours, len(features) - 1), dim=1, largest=False)
        if self.affinity == "knn":
            weights = torch.zeros_like(distances).scatter_(1, nearest.indices, 1.0)
            return (weights + weights.T) / 2
        width = nearest.values[:, -1].mean().clamp_min(1e-6)
        return (-(distances / width).square() / 2).exp()
