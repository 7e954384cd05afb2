"""SubTTA (Zeng et al. 2026, "Subspace Alignment for Vision-Language Model Test-time Adaptation")."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from tta_panda.methods.features import Batch, Encoded
from tta_panda.methods.trained import TrainedMethod
from tta_panda.options import Count, NonNegative
from tta_panda.transfers import to_device


class SubTTA(TrainedMethod):
    """Takes two steps per batch: towards the subspace in which the texts differ, and towards separate classes in it.

    Both losses are computed on plain features, and a shift of all features does not change the first; pseudo-labels and
    predictions are computed on debiased features. Batches of a single image are not trained on.

    The defaults are those of SubTTA's own code for CIFAR-10-C and CIFAR-100-C; for ImageNet-C it uses `lr=5e-4` and
    `momentum=0.5`.

    Args:
        lr: learning rate of AdamW.
        weight_decay: weight decay of AdamW.
        momentum: weight of the stream's earlier covariance, relative to that of the batch.
        rank: maximum dimension of the subspace.
    """

    gradient_passes = 2
    extra_passes = 1

    weight_decay: NonNegative = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.1
    rank: Count = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        texts = self.classifier.class_embeddings
        with torch.inference_mode(False):
            self.basis = _main_directions(texts, self.rank)  # (r, D)
            self._exact_basis = self.basis.cpu().double()
        self.covariance: Tensor  # (D, D) of the stream so far
        self.add_state("covariance", _covariance(texts))

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)

    def _adapt(self, batch: Batch) -> Tensor:
        if len(batch.images) > 1:
            self.step(self._misalignment(self.encode(batch)))
            encoded = self.encode(batch)
            self.step(_overlap(self._project(encoded.features), self._classify_projected(encoded).argmax(dim=1)))
        with torch.no_grad():
            encoded = self.encode(batch)
            return self.classify(encoded) if self.follows_reference else self._classify_projected(encoded)

    def _misalignment(self, encoded: Encoded) -> Tensor:
        """Return a loss whose gradient is that of minus the overlap of both subspaces; its value has no meaning."""
        latest = _covariance(encoded.features)
        latest = latest + 1e-6 * torch.eye(len(latest), dtype=latest.dtype, device=latest.device)
        covariance = torch.lerp(latest, self.covariance, self.momentum)
        self.covariance = covariance.detach()
        slope = _overlap_gradient(self.covariance, self._exact_basis)
        return -(covariance * slope).sum() / (len(self.basis) * (1 - self.momentum))

    def _project(self, features: Tensor) -> Tensor:
        """Return unit coordinates (B, r) of features (B, D) in the subspace of the texts."""
        return F.normalize(features @ self.basis.T, dim=-1)

    def _classify_projected(self, encoded: Encoded) -> Tensor:
        """Return logits (B, K) of features projected into the subspace of the texts.

        Debiased features are divided by the norms of the plain ones after projection, and are not normalised again.
        """
        norms = (encoded.features @ self.basis.T).norm(dim=-1, keepdim=True).clamp_min(1e-12)
        texts = self.classifier.class_embeddings @ self.basis.T  # (K, r)
        return self.classify(encoded, texts, encoded.debiased @ self.basis.T / norms)


def _covariance(features: Tensor) -> Tensor:
    """Return the covariance (D, D) of features (N, D); zero for a single image."""
    centred = features - features.mean(dim=0)
    return centred.T @ centred / max(1, len(features) - 1)


def _main_directions(texts: Tensor, rank: int) -> Tensor:
    """Return orthonormal directions (r, D) in which texts (K, D) differ, without the first unless it is the only one.

    The authors' code uses one more direction, in which the texts do not differ, so rounding errors determine it.
    """
    max_rank = min(len(texts) - 1, texts.shape[1])
    exact = texts.cpu().double()
    directions = torch.linalg.svd(exact - exact.mean(dim=0), full_matrices=False).Vh[:max_rank].to(texts)
    main: Tensor = directions[1 : 1 + rank] if max_rank > 1 else directions
    return main


def _overlap_gradient(covariance: Tensor, basis: Tensor) -> Tensor:
    """Return the gradient (D, D), with respect to a covariance, of the overlap of its main directions with a subspace.

    The subspace is spanned by `basis` (r, D), in double precision on the CPU. Main directions are the eigenvectors 2 to
    r + 1, as for texts. Autograd would also divide by differences of eigenvalues within each of the two groups, on
    which the overlap does not depend and which may be zero.
    """
    values, vectors = torch.linalg.eigh(covariance.cpu().double())  # ascending; double, as gaps can be small
    order = values.argsort(descending=True)
    first = min(1, len(values) - len(basis))
    chosen = torch.zeros_like(values, dtype=torch.bool)
    chosen[order[first : first + len(basis)]] = True
    main, other = vectors[:, chosen], vectors[:, ~chosen]  # (D, r), (D, D-r)
    gaps = values[chosen, None] - values[~chosen]  # (r, D-r)
    shares = (basis @ main).T @ (basis @ other) / gaps.where(gaps.abs() > 1e-9 * values[-1], torch.inf)
    slope: Tensor = main @ shares @ other.T
    return to_device((slope + slope.T).to(covariance.dtype), covariance.device)


def _overlap(features: Tensor, labels: Tensor) -> Tensor:
    """Return the variance of features (B, r) within classes (B,) minus their total variance."""
    same = (labels[:, None] == labels).to(features.dtype)  # (B, B)
    means = same @ features / same.sum(dim=1, keepdim=True)  # (B, r), each image's class mean
    return ((features - means).square() - (features - features.mean(dim=0)).square()).sum(dim=1).mean()
