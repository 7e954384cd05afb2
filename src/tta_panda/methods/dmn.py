"""DMN-ZS (Zhang et al. 2024, "Dual Memory Networks"), its dynamic memory for zero-shot use, without training."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.methods.image_cache import Entries, empty_cache, make_entries, update_cache
from tta_panda.options import Count, NonNegative


class DMN(FrozenMethod):
    """Combines text predictions with those of a memory of confident images per class, read by attention.

    Images are processed one by one, in the order of the batch: the memory of each contains earlier images and the image
    itself. Only pseudo-labels and entropies decide which images enter, so this is computed first; then all images read
    the memory in parallel, each in its state at that image's turn.

    The defaults of `slots` and `sharpness` are those of DMN's own code. That code searches `alpha` for each data set,
    on the test labels; 0.3 is the value of Panda's paper.

    Args:
        slots: maximum number of images per class in the memory; a more certain image replaces the least certain one.
        alpha: weight of the memory's prediction relative to the text's.
        sharpness: sharpness of the attention to memory entries.
    """

    slots: Count = 50
    alpha: NonNegative = 0.3
    sharpness: NonNegative = 5.5

    def __post_init__(self) -> None:
        super().__post_init__()
        norms = self.classifier.class_embeddings.norm(dim=-1)
        self._scales = self.classifier.logit_scale * norms  # (K,), from cosines to logits
        self.memory: Entries
        self.add_state("memory", self._texts())

    def _adapt(self, encoded: Encoded) -> Tensor:
        by_text = self.classify(encoded).log_softmax(dim=-1)  # (B, K)
        # The authors' code stores biased features, and reads with them.
        queries = self.classifier.embed(encoded.features if self.follows_reference else encoded.debiased)
        query_norms = queries.norm(dim=-1, keepdim=True)  # (B, 1)
        directions = queries / query_norms.clamp_min(1e-12)
        seen = make_entries(directions, by_text)
        # The text has a slot of its own, except in the authors' code.
        update = update_cache(self.memory, seen, self.slots + (not self.follows_reference))
        attention = update.attention(directions, self.sharpness)
        cosines = update.prototype_cosines(*attention, classes=by_text.shape[1])
        self.memory = update.apply()
        # Prototypes have the norms of the class embeddings.
        by_memory = cosines * query_norms * self._scales + self.classifier.bias
        if self.alpha == 0:
            return by_text
        mixed = torch.logaddexp(by_text, by_memory.log_softmax(dim=-1) + math.log(self.alpha))
        return mixed - math.log1p(self.alpha)

    def _texts(self) -> Entries:
        """Return the first entries of the memory: class embeddings, more certain than any image."""
        directions = F.normalize(self.classifier.class_embeddings, dim=-1)
        if self.follows_reference:
            return empty_cache(directions)
        labels = torch.arange(len(directions), device="cpu")
        return {
            "features": directions,
            "labels": labels,
            "entropies": torch.full_like(labels, -math.inf, dtype=directions.dtype),
        }
