"""DMN-ZS (Zhang et al. 2024, "Dual Memory Networks"), its dynamic memory for zero-shot use, without training."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded
from tta_panda.methods.image_cache import CacheUpdate, Entries, empty_cache, update_cache
from tta_panda.methods.losses import entropy_of, top_class
from tta_panda.options import Count, NonNegative

FLOATS_PER_PASS = 2**22
"""Size of the intermediate tensors when the memory is read, 16 MB: classes are split into chunks accordingly."""


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
        seen = {"features": directions, "labels": top_class(by_text), "entropies": entropy_of(by_text)}
        # The text has a slot of its own, except in the authors' code.
        update = update_cache(self.memory, seen, self.slots + (not self.follows_reference))
        cosines = self._read(directions, update)
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
        labels = torch.arange(len(directions), device=directions.device)
        return {"features": directions, "labels": labels, "entropies": directions.new_full(labels.shape, -math.inf)}

    def _read(self, queries: Tensor, update: CacheUpdate) -> Tensor:
        """Return cosines (B, K) of unit queries (B, D) with the prototype of each class.

        A prototype is a sum of entries, weighted by the attention of the query. Its product with the query is a
        weighted sum of cosines, so only its norm needs the entries themselves.
        """
        labels, classes = update.entries["labels"], len(self.classifier.class_names)
        cosines, weights = update.attention(queries, self.sharpness)  # (N, B)
        products = weights.new_zeros(classes, len(queries)).index_add_(0, labels, cosines.mul_(weights))  # (K, B)
        squares = torch.zeros_like(products)  # squared norms
        order, counts = labels.argsort(stable=True), labels.bincount(minlength=classes)
        starts = counts.cumsum(0) - counts  # where each class starts among the ordered entries
        by_count = counts.argsort()  # classes with similar counts are read together, which needs little padding
        single = int((counts <= 1).sum())
        if single:  # the norm of a single entry is its weight; classes with more entries are overwritten below
            squares.index_add_(0, labels, weights.square())

        def squared_norms(chunk: slice) -> Tensor:
            own = by_count[single:][chunk]
            place = torch.arange(int(counts[own[-1]]), device=labels.device)  # (S,)
            rows = order[(starts[own, None] + place).clamp_(max=len(order) - 1)].flatten()
            slots = update.entries["features"].index_select(0, rows).view(len(own), len(place), -1)  # (k, S, D)
            attention = weights.index_select(0, rows).view(len(own), len(place), -1)  # (k, S, B)
            attention.masked_fill_((place >= counts[own, None])[..., None], 0.0)
            return (slots @ slots.mT @ attention).mul_(attention).sum(dim=1)

        if single < classes:
            floats_per_class = max(len(queries), int(counts.max())) * queries.shape[1]
            chunk_size = max(1, FLOATS_PER_PASS // floats_per_class)
            squares[by_count[single:]] = in_chunks(squared_norms, classes - single, chunk_size)
        return (products / squares.clamp_min_(torch.finfo(squares.dtype).tiny).sqrt_()).T
