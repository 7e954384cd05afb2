"""DMN-ZS (Zhang et al. 2024, "Dual Memory Networks"): the dynamic memory, zero-shot, without any training."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import FrozenMethod, Protocol
from tta_panda.methods.checks import check_range
from tta_panda.methods.losses import entropy
from tta_panda.models.base import Classifier
from tta_panda.panda import Encoded, Panda


class DMN(FrozenMethod):
    """A memory of confident images per class, read by attention, beside the texts.

    Images are taken one by one, in the order of the batch: each finds those before it in the memory.

    Args:
        slots: images that a class can remember; the least certain one makes room.
        alpha: weight of the memory's prediction beside the text's.
        sharpness: of the attention to what is remembered.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        slots: int = 50,
        alpha: float = 0.3,
        sharpness: float = 5.5,
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
    ):
        check_range("slots", slots, 1)
        check_range("alpha", alpha, 0)
        check_range("sharpness", sharpness, 0)
        super().__init__(classifier, debias=debias, protocol=protocol, seed=seed)
        self.slots = slots
        self.alpha = alpha
        self.sharpness = sharpness
        classes, size = classifier.text_features.shape
        self.memory: Tensor  # (K, slots, D)
        self.uncertainty: Tensor  # (K, slots) entropies; infinite where a slot is free
        device = classifier.text_features.device
        self.add_state("memory", torch.zeros(classes, slots, size, device=device))
        self.add_state("uncertainty", torch.full((classes, slots), math.inf, device=device))

    @torch.no_grad()
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        debiased = self.features.debias(encoded)
        by_text = self.classifier.logits(debiased)  # (B, K)
        queries = self.classifier.embed(debiased)
        directions = F.normalize(queries, dim=-1)
        # The authors' code remembers what is biased.
        keys = F.normalize(encoded.features, dim=-1) if self.follows_reference else directions
        entropies, labels = entropy(by_text), by_text.argmax(dim=1)
        by_memory = torch.empty_like(by_text)
        for i, direction in enumerate(directions):
            self._remember(keys[i], labels[i], entropies[i])
            by_memory[i] = self.classifier.logits(queries[i], self._recall(direction))
        if self.alpha == 0:
            return by_text.log_softmax(dim=-1)
        mixed = torch.logaddexp(by_text.log_softmax(dim=-1), by_memory.log_softmax(dim=-1) + math.log(self.alpha))
        return mixed - math.log1p(self.alpha)

    def _remember(self, key: Tensor, label: Tensor, uncertainty: Tensor) -> None:
        """Into a free slot, which counts as infinitely uncertain, or in the place of something less certain."""
        slot = self.uncertainty[label].argmax()
        if uncertainty < self.uncertainty[label, slot]:
            self.memory[label, slot] = key
            self.uncertainty[label, slot] = uncertainty

    def _recall(self, query: Tensor) -> Tensor:
        """What each class (K, D) looks like from here."""
        taken = self.uncertainty.isfinite()  # (K, slots)
        attention = (-self.sharpness * (1 - self.memory @ query)).exp() * taken
        seen = torch.einsum("ks,ksd->kd", attention, self.memory)
        classes = self.classifier.text_features
        if not self.follows_reference:  # which also has the text in a slot that is never given away
            text = F.normalize(classes, dim=-1)
            seen = seen + (-self.sharpness * (1 - text @ query)).exp()[:, None] * text
        lengths: Tensor = classes.norm(dim=-1, keepdim=True)
        return F.normalize(seen, dim=-1) * lengths  # as long as what it stands beside
