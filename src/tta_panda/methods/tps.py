"""TPS (Sui et al. 2024, "Just Shift It: Test-Time Prototype Shifting for Zero-Shot Generalization")."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor

from tta_panda.methods.episodes import EpisodicMethod, EpisodicOptions
from tta_panda.models.base import Classifier

FLOATS_PER_PASS = 2**24
"""How many numbers of prototypes are shifted at a time: 64 MB, and a few times that for gradients."""


class TPS(EpisodicMethod):
    """For each image alone, the class embeddings are shifted until its confident views agree."""

    def __init__(self, classifier: Classifier, **common: Unpack[EpisodicOptions]):
        super().__init__(classifier, **common)
        self.start = torch.zeros_like(classifier.class_embeddings)  # (K, D)
        self.images_at_once = max(1, FLOATS_PER_PASS // self.start.numel())

    def logits(self, features: Tensor, tuned: Tensor) -> Tensor:
        return self.classifier.logits_from_raw(features, self.classifier.class_embeddings + tuned)
