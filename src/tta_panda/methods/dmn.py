"""DMN-ZS (Zhang et al. 2024, "Dual Memory Networks"): the dynamic memory, zero-shot, without any training."""

from __future__ import annotations

import math
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.chunks import in_chunks
from tta_panda.methods.base import FrozenMethod, MethodOptions
from tta_panda.methods.batch import Encoded
from tta_panda.methods.losses import entropy_of
from tta_panda.methods.memory import Entries, Stay, empty_memory, offer
from tta_panda.models.base import Classifier

FLOATS_PER_PASS = 2**22
"""How many numbers the classes that are read at a time give: 16 MB."""


class DMN(FrozenMethod):
    """A memory of confident images per class, read by attention, beside the texts.

    Images are taken one by one, in the order of the batch: each finds those before it, and itself, in the memory. Only
    the decisions what to remember depend on each other, and these need labels and entropies alone; all images then
    read at once, each from what the memory held at its turn.

    The defaults of `slots` and `sharpness` are those of DMN's own code. That code searches `alpha` for each data set,
    on the test labels; 0.3 is the value of Panda's paper.

    Args:
        slots: images that a class can remember; the least certain one makes room.
        alpha: weight of the memory's prediction beside the text's.
        sharpness: of the attention to what is remembered.
        common: the arguments of every method.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        slots: int = 50,
        alpha: float = 0.3,
        sharpness: float = 5.5,
        **common: Unpack[MethodOptions],
    ):
        super().__init__(classifier, **common)
        check_range("slots", slots, 1)
        check_range("alpha", alpha, 0)
        check_range("sharpness", sharpness, 0)
        self.slots = slots
        self.alpha = alpha
        self.sharpness = sharpness
        self._lengths = classifier.logit_scale * classifier.class_embeddings.norm(dim=-1)  # (K,), as logits have them
        self.memory: Entries
        self.add_state("memory", self._texts())

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        by_text = self.classify(encoded).log_softmax(dim=-1)  # (B, K)
        # The authors' code remembers what is biased, and asks with it.
        queries = self.classifier.embed(encoded.features if self.follows_reference else encoded.debiased)
        lengths = queries.norm(dim=-1, keepdim=True)  # (B, 1)
        directions = queries / lengths.clamp_min(1e-12)
        seen = {"features": directions, "labels": by_text.argmax(dim=1), "entropies": entropy_of(by_text)}
        # The text has a slot of its own, except in the authors' code.
        stay = offer(self.memory, seen, self.slots + (not self.follows_reference))
        cosines = self._recall(directions, stay)
        self.memory = stay.settle()
        # Prototypes are as long as the class embeddings that they stand beside.
        by_memory = cosines * lengths * self._lengths + self.classifier.bias
        if self.alpha == 0:
            return by_text
        mixed = torch.logaddexp(by_text, by_memory.log_softmax(dim=-1) + math.log(self.alpha))
        return mixed - math.log1p(self.alpha)

    def _texts(self) -> Entries:
        """What is remembered before the first image: class embeddings, more certain than anything that may follow."""
        directions = F.normalize(self.classifier.class_embeddings, dim=-1)
        if self.follows_reference:
            return empty_memory(directions)
        labels = torch.arange(len(directions), device=directions.device)
        return {"features": directions, "labels": labels, "entropies": directions.new_full(labels.shape, -math.inf)}

    def _recall(self, queries: Tensor, stay: Stay) -> Tensor:
        """Cosines (B, K) of unit queries (B, D) with what each class looks like from there.

        Attention makes a sum of entries, of which only the length is missing once its products with queries are known.
        """
        labels, classes = stay.entries["labels"], len(self.classifier.class_names)
        cosines, weights = stay.attention(queries, self.sharpness)  # (N, B)
        nothing = weights.new_zeros(classes, len(queries))  # (K, B)
        products = nothing.index_add(0, labels, cosines.mul_(weights))
        squares = nothing.index_add(0, labels, weights.square())  # squared lengths, if entries were orthogonal

        counts = labels.bincount(minlength=classes)
        several = counts.argsort()[int((counts <= 1).sum()) :]  # as many entries together: few rows are empty
        rows = rows_by_class(labels, counts)[several]  # (k, S)

        def squared_lengths(chunk: slice) -> Tensor:
            own = rows[chunk, : counts[several[chunk]].max()]
            is_empty, places = own < 0, own.clamp(min=0).flatten()
            slots = stay.entries["features"].index_select(0, places).view(*own.shape, -1)  # (k, S, D)
            attention = weights.index_select(0, places).view(*own.shape, -1)  # (k, S, B)
            attention.masked_fill_(is_empty[..., None], 0.0)
            return (slots @ slots.mT @ attention).mul_(attention).sum(dim=1)

        if len(several):
            floats_per_class = max(len(queries), rows.shape[1]) * queries.shape[1]
            chunk_size = max(1, FLOATS_PER_PASS // floats_per_class)
            squares[several] = in_chunks(squared_lengths, len(several), chunk_size)
        return (products / squares.clamp_min_(torch.finfo(squares.dtype).tiny).sqrt_()).T


def rows_by_class(labels: Tensor, counts: Tensor) -> Tensor:
    """Where the entries with these labels (N,) are, class by class (K, S); -1 where a class has fewer than others."""
    ordered, order = labels.sort(stable=True)
    place = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts).index_select(0, ordered)
    rows = labels.new_full((len(counts), int(counts.max())), -1)
    rows[ordered, place] = order
    return rows
