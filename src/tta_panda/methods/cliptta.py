"""CLIPTTA (Lafon et al. 2025, "CLIPTTA: Robust Contrastive Vision-Language Test-Time Adaptation"), for closed sets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch, Encoded
from tta_panda.methods.image_cache import Entries, update_cache
from tta_panda.methods.losses import entropy, marginal_entropy
from tta_panda.methods.trained import TrainedMethod
from tta_panda.options import Count, NonNegative
from tta_panda.transfers import select


class CLIPTTA(TrainedMethod):
    """Matches images with the texts of their predicted classes, as in CLIP's training, in several steps per batch.

    The same loss is computed on the batch and on a sample of confident earlier images, and diverse predictions are
    rewarded. Sets of a single image have no contrast and are not trained on.

    The defaults are those of CLIPTTA's own code for CIFAR-10-C.

    Args:
        lr: learning rate of Adam.
        steps: number of steps per batch.
        slots: maximum number of images per class in the memory.
        sample_size: number of images that each step draws from the memory, equally from all classes.
        diversity: weight of the entropy of the mean prediction.
    """

    lr: NonNegative = 1e-4
    steps: Count = 10
    slots: Count = 4
    sample_size: Count = 40
    diversity: NonNegative = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory: Entries
        self.add_state("memory", self.no_images())
        self.generator: torch.Generator
        self.add_state("generator", torch.Generator().manual_seed(self.seed))

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.lr, eps=1e-6)

    def _adapt(self, batch: Batch) -> Tensor:
        for step in range(self.steps):
            logits = self.classify(encoded := self.encode(batch))
            if step == 0:
                self._remember(batch, encoded, logits.detach())
            sample = self._sample()
            sets = [logits] if len(logits) > 1 else []
            if len(sample["labels"]) > 1:
                sets.append(self.classify(self.recall(sample)))
            if sets:
                self.step(torch.stack([self._loss(each) for each in sets]).sum())
        with torch.no_grad():
            return self.classify(self.encode(batch))

    def _loss(self, logits: Tensor) -> Tensor:
        """Return the loss of a set of images with these logits (B, K)."""
        matches = logits[:, logits.argmax(dim=1)]  # (B, B) of images and the texts of all predicted classes
        contrast = entropy(matches).mean()
        if not self.follows_reference:
            contrast = (contrast + entropy(matches.T).mean()) / 2
        return contrast - self.diversity * marginal_entropy(logits)

    def _remember(self, batch: Batch, encoded: Encoded, logits: Tensor) -> None:
        """Enter the images of a batch, which replace less confident ones of their class."""
        # The authors' code computes probabilities from cosines without a scale.
        scaled = logits / self.classifier.logit_scale if self.follows_reference else logits
        entries = self.to_memory(batch, encoded, logits, -scaled.log_softmax(dim=-1).amax(dim=-1))
        self.memory = update_cache(self.memory, entries, self.slots).apply()

    def _sample(self) -> Entries:
        """Draw images of each class from the memory."""
        labels = self.memory["labels"]
        order = torch.randperm(len(labels), generator=self.generator)
        by_class = labels[order].sort(stable=True)
        rank = torch.arange(len(labels)) - torch.searchsorted(by_class.values, by_class.values)
        rows = order[by_class.indices[rank < self._per_class(self.sample_size, len(self.classifier.class_names))]]
        return {name: select(entries, rows) for name, entries in self.memory.items()}

    @staticmethod
    def _per_class(sample_size: int, classes: int) -> int:
        return max(1, sample_size // classes)

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        size = batch.images + batch.negatives
        sample = batch.classes * min(options["slots"], cls._per_class(options["sample_size"], batch.classes))
        passes.images += size
        passes.images_with_gradient = options["steps"] * (size + sample)
        return passes
