"""MTA (Zanella and Ben Ayed 2024, "On the Test-Time Zero-Shot Generalization of Vision-Language Models")."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.features import Encoded
from tta_panda.methods.views import ViewMethod
from tta_panda.options import NonNegative, Share
from tta_panda.views import Augmentation

ROUNDS = 5
"""Number of alternating updates of the views' weights and the mode."""

STEPS = 5
"""Number of steps in each update."""


class MTA(ViewMethod):
    """Compares the mode of an image's views with the texts; outlying views have less weight.

    The mode is found by mean shift on plain features. Views are weighted by their density and by how many others make
    the same prediction. Predictions are debiased, and so is the mode in the end.

    The defaults are those of MTA's own code, the same for all data sets.

    Args:
        neighbours: fraction of the other views, the nearest, that determines the bandwidth of a view; at least one
            view is used.
        sharpness: inverse temperature of the views' weights.
        affinity_weight: weight of the agreement with other views' predictions, relative to the density.
    """

    augmentation: Augmentation = "crops"
    neighbours: Share = 0.3
    sharpness: NonNegative = 5.0
    affinity_weight: NonNegative = 4.0

    def _adapt(self, encoded: Encoded) -> Tensor:
        assert encoded.views is not None
        views = F.normalize(encoded.views, dim=-1)  # (B, V, D)
        predicted = self.view_logits(encoded).softmax(dim=-1)
        affinity = self.affinity_weight * predicted @ predicted.mT  # (B, V, V)
        bandwidth = _squared_bandwidth(views, self.neighbours)  # (B, V)
        weights, mode = torch.full_like(bandwidth, 1 / bandwidth.shape[1]), views[:, 0]

        for _ in range(ROUNDS):
            density = _density(views, mode, bandwidth)
            for _ in range(STEPS):
                agreement = (affinity @ weights[..., None])[..., 0]
                weights = (self.sharpness * (density + agreement)).softmax(dim=-1)
            for _ in range(STEPS):
                density = _density(views, mode, bandwidth)
                mode = F.normalize((weights * density)[:, None] @ views, dim=-1)[:, 0]
        lengths = encoded.features.norm(dim=-1, keepdim=True)  # 1, unless the classifier is a linear head
        return self.classify(encoded._replace(features=mode * lengths))


def _density(views: Tensor, mode: Tensor, bandwidth: Tensor) -> Tensor:
    """Return the densities (B, V) of kernels around views (B, V, D) at the modes (B, D)."""
    return (-(views - mode[:, None]).square().sum(dim=-1) / (2 * bandwidth)).exp()


def _squared_bandwidth(views: Tensor, share: float) -> Tensor:
    """Return half the mean squared distance (B, V) of unit views (B, V, D) to the nearest of the others."""
    count = views.shape[1]
    if count == 1:
        return views.new_ones(len(views), 1)  # arbitrary: the mode is that view
    exact = "donot_use_mm_for_euclid_dist"  # 2 - 2 cos would be mostly rounding error for similar views
    distances = torch.cdist(views, views, compute_mode=exact).square_()  # (B, V, V)
    distances.diagonal(dim1=1, dim2=2).fill_(torch.inf)
    nearest = distances.topk(max(1, int(share * (count - 1) + 1e-9)), dim=-1, largest=False).values
    return 0.5 * nearest.mean(dim=-1).clamp_min(1e-12)
