"""TDA (Karmanov et al. 2024, "Efficient Test-Time Adaptation of Vision-Language Models")."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.methods.image_cache import CacheUpdate, Entries, empty_cache, make_entries, update_cache
from tta_panda.options import Count, NonNegative
from tta_panda.transfers import to_device


class TDA(FrozenMethod):
    """Raises the logits of a class by similarity to its certain images, and lowers them by that to uncertain images.

    Images are processed one by one, in the order of the batch, and enter the caches before they are classified. The
    caches contain plain features; text logits, entropies and pseudo-labels are computed on debiased ones.

    The defaults are those of TDA's own code for ImageNet. It has none for corruptions, and searched `alpha` and
    `sharpness` for each data set.

    Args:
        slots: maximum number of images per class in the positive cache; a more certain image replaces the least certain
            one.
        alpha: weight of the positive cache.
        sharpness: how fast the weight of an image decreases with distance.
        negative_slots: maximum number of images per class in the negative cache.
        negative_alpha: weight of the negative cache.
        negative_sharpness: like `sharpness`, for the negative cache.
        min_entropy: images enter the negative cache if their entropy in nats, divided by log2 K, is above this and
            below `max_entropy`.
        max_entropy: see `min_entropy`.
        min_probability: images in the negative cache count against classes whose probability is above this.
    """

    slots: Count = 3
    alpha: NonNegative = 2.0
    sharpness: NonNegative = 5.0
    negative_slots: Count = 2
    negative_alpha: NonNegative = 0.117
    negative_sharpness: NonNegative = 1.0
    min_entropy: NonNegative = 0.2
    max_entropy: NonNegative = 0.5
    min_probability: NonNegative = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        classes = len(self.classifier.class_names)
        empty = empty_cache(self.classifier.class_embeddings)
        self.positive: Entries
        self.negative: Entries  # with the possible classes (N, K) of each image
        self.add_state("positive", empty)
        possible = empty["features"].new_empty(0, classes, dtype=torch.bool)
        self.add_state("negative", {**empty, "possible": possible})

    def _adapt(self, encoded: Encoded) -> Tensor:
        logits = self.classify(encoded)  # (B, K)
        probabilities = logits.softmax(dim=-1)
        keys = F.normalize(encoded.features, dim=-1)
        seen = make_entries(keys, logits)
        possible = (self.min_probability < probabilities) & (probabilities < 1)
        shares = seen["entropies"] / math.log2(logits.shape[1])
        is_uncertain = (self.min_entropy < shares) & (shares < self.max_entropy)
        positive = update_cache(self.positive, seen, self.slots)
        doubtful = {**seen, "possible": possible}
        negative = update_cache(
            self.negative, doubtful, self.negative_slots, is_uncertain, oldest_first=self._forgets_oldest
        )
        votes = self._votes(encoded, positive, keys)
        _, weights_against = negative.attention(keys, self.negative_sharpness)
        against = weights_against.T @ negative.entries["possible"].to(keys.dtype)  # (B, K)
        self.positive, self.negative = positive.apply(), negative.apply()
        return logits + self.alpha * votes - self.negative_alpha * against

    @property
    def _forgets_oldest(self) -> bool:
        """Whether images in the negative cache are replaced by age, not by entropy."""
        return False

    def _votes(self, encoded: Encoded, positive: CacheUpdate, keys: Tensor) -> Tensor:
        """Return the votes (B, K) of the positive cache for images with these keys (B, D)."""
        _, weights = positive.attention(keys, self.sharpness)  # (N, B)
        votes = keys.new_zeros(len(keys), len(self.classifier.class_names))
        return votes.index_add_(1, to_device(positive.entries["labels"], votes.device), weights.T)
