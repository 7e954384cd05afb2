"""DMN-ZS (Zhang et al. 2024, "Dual Memory Networks"): the dynamic memory, zero-shot, without any training."""

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
"""How many numbers the classes that are read at a time give: 16 MB."""


class DMN(FrozenMethod):
    """A memory of confident images per class, read by attention, beside the texts.

    Images are taken one by one, in the order of the batch: each finds those before it, and itself, in the memory. Which
    images enter depends on labels and entropies alone, so it is decided first; then all images read the memory at once,
    each as it was at its turn.

    The defaults of `slots` and `sharpness` are those of DMN's own code. That code searches `alpha` for each data set,
    on the test labels; 0.3 is the value of Panda's paper.

    Args:
        slots: images of a class in the memory; a more certain one replaces the least certain.
        alpha: weight of the memory's prediction beside the text's.
        sharpness: of the attention to entries of the memory.
    """

    slots: Count = 50
    alpha: NonNegative = 0.3
    sharpness: NonNegative = 5.5

    def __post_init__(self) -> None:
        super().__post_init__()
        norms = self.classifier.class_embeddings.norm(dim=-1)
        self._lengths = self.classifier.logit_scale * norms  # (K,), as logits have them
        self.memory: Entries
        self.add_state("memory", self._texts())

    def _adapt(self, encoded: Encoded) -> Tensor:
        by_text = self.classify(encoded).log_softmax(dim=-1)  # (B, K)
        # The authors' code stores biased features, and reads with them.
        queries = self.classifier.embed(encoded.features if self.follows_reference else encoded.debiased)
        lengths = queries.norm(dim=-1, keepdim=True)  # (B, 1)
        directions = queries / lengths.clamp_min(1e-12)
        seen = {"features": directions, "labels": top_class(by_text), "entropies": entropy_of(by_text)}
        # The text has a slot of its own, except in the authors' code.
        update = update_cache(self.memory, seen, self.slots + (not self.follows_reference))
        cosines = self._read(directions, update)
        self.memory = update.apply()
        # Prototypes are as long as the class embeddings that they stand beside.
        by_memory = cosines * lengths * self._lengths + self.classifier.bias
        if self.alpha == 0:
            return by_text
        mixed = torch.logaddexp(by_text, by_memory.log_softmax(dim=-1) + math.log(self.alpha))
        return mixed - math.log1p(self.alpha)

    def _texts(self) -> Entries:
        """The first entries of the memory: class embeddings, more certain than any image."""
        directions = F.normalize(self.classifier.class_embeddings, dim=-1)
        if self.follows_reference:
            return empty_cache(directions)
        labels = torch.arange(len(directions), device=directions.device)
        return {"features": directions, "labels": labels, "entropies": directions.new_full(labels.shape, -math.inf)}

    def _read(self, queries: Tensor, update: CacheUpdate) -> Tensor:
        """Cosines (B, K) of unit queries (B, D) with what each class looks like from there.

        Attention makes a sum of entries, of which only the length is missing once its products with queries are known.
        """
        labels, classes = update.entries["labels"], len(self.classifier.class_names)
        cosines, weights = update.attention(queries, self.sharpness)  # (N, B)
        products = weights.new_zeros(classes, len(queries)).index_add_(0, labels, cosines.mul_(weights))  # (K, B)
        squares = torch.zeros_like(products)  # of lengths
        order, counts = labels.argsort(stable=True), labels.bincount(minlength=classes)
        starts = counts.cumsum(0) - counts  # of each class among the entries in order
        by_count = counts.argsort()  # classes with as many entries are read together: few places are empty
        single = int((counts <= 1).sum())
        if single:  # of which the length is its weight; where a class has more entries, this is overwritten below
            squares.index_add_(0, labels, weights.square())

        def squared_lengths(chunk: slice) -> Tensor:
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
            squares[by_count[single:]] = in_chunks(squared_lengths, classes - single, chunk_size)
        return (products / squares.clamp_min_(torch.finfo(squares.dtype).tiny).sqrt_()).T
