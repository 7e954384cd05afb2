"""TPS (Sui et al. 2024, "Just Shift It: Test-Time Prototype Shifting for Zero-Shot Generalization")."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_panda.methods.views import EpisodicMethod

FLOATS_PER_PASS = 2**24
"""Size of the prototypes that are shifted at a time: 64 MB, and a few times that for gradients."""


class TPS(EpisodicMethod):
    """Shifts the class embeddings for each image separately, so that its confident views agree.

    With several steps, confident views are selected at each step.
    """

    selects_every_step = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.start = torch.zeros_like(self.classifier.class_embeddings)  # (K, D)
        self.images_at_once = max(1, FLOATS_PER_PASS // self.start.numel())

    def logits(self, features: Tensor, tuned: Tensor) -> Tensor:
        return self.classifier.logits_from_raw(features, self.classifier.class_embeddings + tuned)
