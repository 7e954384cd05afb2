"""DMN-ZS (Zhang et al. 2024, "Dual Memory Networks"): the dynamic memory, zero-shot, without any training."""

from __future__ import annotations

import math
from typing import NamedTuple, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.chunks import in_chunks
from tta_panda.methods.base import FrozenMethod, MethodOptions
from tta_panda.methods.batch import Encoded
from tta_panda.methods.losses import entropy
from tta_panda.models.base import Classifier

FLOATS_PER_PASS = 2**22
"""How many numbers the classes that are read at a time give: 16 MB."""


class Write(NamedTuple):
    """An image of the batch enters the memory."""

    image: int
    label: int
    slot: int


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
        self.memory: Tensor  # (K, S, D), with as many slots as the fullest class needs so far
        self.uncertainty: Tensor  # (K, S) entropies, on the CPU; infinite where a slot is free
        self.add_state("memory", classifier.class_embeddings[:, None][:, :0])
        self.add_state("uncertainty", torch.empty(len(classifier.class_names), 0))

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        by_text = self.classifier.logits(encoded.debiased)  # (B, K)
        # The authors' code remembers what is biased, and asks with it.
        queries = self.classifier.embed(encoded.features if self.follows_reference else encoded.debiased)
        directions = F.normalize(queries, dim=-1)
        entropies = entropy(by_text).cpu()
        writes = self._decide(by_text.argmax(dim=1).tolist(), entropies.tolist())
        cosines = self._recall(directions, writes)
        self._remember(directions, entropies, writes)
        # Prototypes are as long as the class embeddings that they stand beside.
        lengths = queries.norm(dim=-1, keepdim=True) * self.classifier.class_embeddings.norm(dim=-1)
        by_memory = self.classifier.logit_scale * cosines * lengths + self.classifier.bias
        if self.alpha == 0:
            return by_text.log_softmax(dim=-1)
        mixed = torch.logaddexp(by_text.log_softmax(dim=-1), by_memory.log_softmax(dim=-1) + math.log(self.alpha))
        return mixed - math.log1p(self.alpha)

    def _decide(self, labels: list[int], entropies: list[float]) -> list[Write]:
        """Which images enter the memory, and in which slot: a free one, or that of a less certain image."""
        writes = []
        rows: dict[int, list[float]] = {}
        for image, (label, uncertainty) in enumerate(zip(labels, entropies, strict=True)):
            row = rows.setdefault(label, self.uncertainty[label].tolist())
            if math.inf not in row and len(row) < self.slots:
                row.append(math.inf)
            slot = row.index(max(row))
            if uncertainty < row[slot]:
                row[slot] = uncertainty
                writes.append(Write(image, label, slot))
        return writes

    def _recall(self, queries: Tensor, writes: list[Write]) -> Tensor:
        """Cosines (B, K) of unit queries (B, D) with what each class looks like from there.

        The batch's own entries stand behind the slots (K, S) of before. Each entry has the turns, of the B images, at
        which it is in the memory: from `since` on, `until` it is overwritten.
        """
        size, (classes, width) = len(queries), self.uncertainty.shape
        since = torch.where(self.uncertainty.cpu().isfinite(), 0, size)  # (K, S); free slots are never read
        until = torch.full_like(since, size)
        entered: list[list[list[int]]] = [[] for _ in range(classes)]  # [since, until] of the new entries
        latest: dict[tuple[int, int], list[int]] = {}
        for image, label, slot in writes:
            if (label, slot) in latest:
                latest[label, slot][1] = image
            elif slot < width:
                until[label, slot] = image
            latest[label, slot] = [image, size]
            entered[label].append(latest[label, slot])

        def read(chunk: slice) -> Tensor:
            most = max(map(len, entered[chunk]))
            padded = [turns + [[size, size]] * (most - len(turns)) for turns in entered[chunk]]
            new_since, new_until = torch.tensor(padded, dtype=torch.long).view(len(padded), most, 2).unbind(dim=2)
            new = queries[new_since.clamp(max=size - 1).to(queries.device)]  # (k, E, D)
            slots = torch.cat([self.memory[chunk], new], dim=1)
            turns_of_slots = torch.cat([since[chunk], new_since], dim=1), torch.cat([until[chunk], new_until], dim=1)
            return self._read(queries, slots, *turns_of_slots, chunk)

        return in_chunks(read, classes, max(1, FLOATS_PER_PASS // queries.numel())).T

    def _read(self, queries: Tensor, slots: Tensor, since: Tensor, until: Tensor, chunk: slice) -> Tensor:
        """The same (k, B) for some classes, from their slots (k, S, D) and the turns (k, S) of these."""
        if not self.follows_reference:  # the text has a slot that is never given away
            text = F.normalize(self.classifier.class_embeddings[chunk], dim=-1)
            slots = torch.cat([text[:, None], slots], dim=1)
            since, until = F.pad(since, (1, 0), value=0), F.pad(until, (1, 0), value=len(queries))
        turn = torch.arange(len(queries))[:, None]
        is_held = (since[:, None] <= turn) & (turn < until[:, None])  # (k, B, S)
        similarity = queries @ slots.mT
        attention = similarity.sub(1).mul_(self.sharpness).exp_().mul_(is_held.to(queries.device))
        lengths = (attention @ slots).norm(dim=-1).clamp_min_(1e-12)  # (k, B)
        cosines: Tensor = attention.mul_(similarity).sum(dim=-1) / lengths
        return cosines

    def _remember(self, keys: Tensor, entropies: Tensor, writes: list[Write]) -> None:
        """Do the writes; of several to one slot, the last one stays."""
        if not writes:
            return
        images, labels, slots = zip(*{(w.label, w.slot): w for w in writes}.values(), strict=True)
        more = max(0, max(slots) + 1 - self.memory.shape[1])
        self.memory = F.pad(self.memory, (0, 0, 0, more)) if more else self.memory
        self.uncertainty = F.pad(self.uncertainty.cpu(), (0, more), value=math.inf)
        self.memory[list(labels), list(slots)] = keys[list(images)]
        self.uncertainty[list(labels), list(slots)] = entropies[list(images)]
