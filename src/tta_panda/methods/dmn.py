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
from tta_panda.methods.losses import entropy
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
        self.memory: Entries
        self.add_state("memory", self._texts())

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        by_text = self.classify(encoded)  # (B, K)
        # The authors' code remembers what is biased, and asks with it.
        queries = self.classifier.embed(encoded.features if self.follows_reference else encoded.debiased)
        directions = F.normalize(queries, dim=-1)
        seen = {"features": directions, "labels": by_text.argmax(dim=1), "entropies": entropy(by_text)}
        # The text has a slot of its own, except in the authors' code.
        stay = offer(self.memory, seen, self.slots + (not self.follows_reference))
        cosines = self._recall(directions, stay)
        self.memory = stay.settle()
        # Prototypes are as long as the class embeddings that they stand beside.
        lengths = queries.norm(dim=-1, keepdim=True) * self.classifier.class_embeddings.norm(dim=-1)
        by_memory = self.classifier.logit_scale * cosines * lengths + self.classifier.bias
        if self.alpha == 0:
            return by_text.log_softmax(dim=-1)
        mixed = torch.logaddexp(by_text.log_softmax(dim=-1), by_memory.log_softmax(dim=-1) + math.log(self.alpha))
        return mixed - math.log1p(self.alpha)

    def _texts(self) -> Entries:
        """What is remembered before the first image: class embeddings, more certain than anything that may follow."""
        directions = F.normalize(self.classifier.class_embeddings, dim=-1)
        if self.follows_reference:
            return empty_memory(directions)
        labels = torch.arange(len(directions), device=directions.device)
        return {"features": directions, "labels": labels, "entropies": directions.new_full(labels.shape, -math.inf)}

    def _recall(self, queries: Tensor, stay: Stay) -> Tensor:
        """Cosines (B, K) of unit queries (B, D) with what each class looks like from there."""
        labels = stay.column("labels")
        rows = rows_by_class(labels, len(self.classifier.class_names))  # (K, S)
        counts, order = (rows >= 0).sum(dim=1).sort()  # classes with as many entries together: few rows are empty
        single = int((counts <= 1).sum())
        since, until = F.pad(stay.since, (0, 1)), F.pad(stay.until, (0, 1))  # the row -1 is never held
        turn = torch.arange(len(queries), device=labels.device)

        def read_single() -> Tensor:
            """Of classes with at most one entry (k, B): attention makes of it what it is."""
            own = rows[order[:single], :1]
            is_held = (since[own] <= turn) & (until[own] > turn)
            return (stay.rows("features", own[:, 0]) @ queries.T).mul_(is_held)

        def read(chunk: slice) -> Tensor:
            own = rows[order[single:][chunk]]
            own = own[:, (own >= 0).any(dim=0)]  # (k, S)
            is_held = (since[own][..., None] <= turn) & (until[own][..., None] > turn)  # (k, S, B)
            slots = stay.rows("features", own)  # (k, S, D)
            similarity = slots @ queries.T
            attention = similarity.sub(1).mul_(self.sharpness).exp_().mul_(is_held)
            # The lengths of what attention makes of the slots, without making it: that would be (k, B, D).
            squares = (slots @ slots.mT @ attention).mul_(attention).sum(dim=1)  # (k, B)
            return attention.mul_(similarity).sum(dim=1) / squares.clamp_min_(1e-24).sqrt_()

        floats_per_class = max(len(queries), rows.shape[1]) * queries.shape[1]
        parts = [read_single()] if single else []
        if single < len(rows):
            parts.append(in_chunks(read, len(rows) - single, max(1, FLOATS_PER_PASS // floats_per_class)))
        return torch.cat(parts)[order.argsort()].T


def rows_by_class(labels: Tensor, classes: int) -> Tensor:
    """Where the entries with these labels (N,) are, class by class (K, S); -1 where a class has fewer than others."""
    order = labels.argsort(stable=True)
    counts = labels.bincount(minlength=classes)
    place = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts)[labels[order]]
    rows = labels.new_full((classes, int(counts.max())), -1)
    rows[labels[order], place] = order
    return rows
