"""TPS (Sui et al. 2024, "Just Shift It: Test-Time Prototype Shifting for Zero-Shot Generalization")."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.methods.base import Protocol
from tta_panda.methods.episodes import EpisodicMethod, minimise
from tta_panda.methods.losses import marginal_entropy
from tta_panda.models.base import Classifier
from tta_panda.panda import Encoded, Panda
from tta_panda.views import ViewKind

FLOATS_PER_PASS = 2**24
"""Prototypes of so many numbers in all are shifted at a time: 64 MB, and a few times that for gradients."""


class TPS(EpisodicMethod):
    """For each image alone, the class embeddings are shifted until its confident views agree.

    Args:
        lr: learning rate of AdamW.
        steps: updates per image.
        views: how many of each image, the plain one included.
        keep: share of them, the lowest in entropy, that the shift is learned from.
        augmentation: `"augmix"`, or `"crops"` for crops and flips only.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 1e-3,
        steps: int = 1,
        views: int = 10,
        keep: float = 0.3,
        augmentation: ViewKind = "augmix",
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
    ):
        super().__init__(
            classifier,
            lr=lr,
            steps=steps,
            views=views,
            keep=keep,
            augmentation=augmentation,
            debias=debias,
            protocol=protocol,
            seed=seed,
        )

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        features = self.view_features(encoded)  # (B, V, D)
        kept = self.confident_views(features)  # (B, n, D)
        text = self.classifier.text_features

        def solve(piece: slice) -> Tensor:
            """All images at once: their shifts do not touch each other."""
            start = text.new_zeros(len(kept[piece]), *text.shape)
            shift = minimise(
                lambda shift: marginal_entropy(self._logits(kept[piece], shift)), start, self.lr, self.steps
            )
            return self._logits(features[piece, :1], shift)[:, 0]

        return in_chunks(solve, len(kept), max(1, FLOATS_PER_PASS // text.numel()))

    def _logits(self, features: Tensor, shift: Tensor) -> Tensor:
        """(B, n, K) of features (B, n, D) under prototypes shifted by (B, K, D)."""
        prototypes = self.classifier.embed(self.classifier.text_features + shift)
        return self.classifier.logits(features, prototypes)
