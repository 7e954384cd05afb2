"""RoTTA (Yuan et al. 2023, "Robust Test-Time Adaptation in Dynamic Scenarios")."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch
from tta_panda.methods.image_cache import Entries
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod, lerp
from tta_panda.options import Count, Share
from tta_panda.transfers import select, to_device
from tta_panda.views.strong import apply_strong_plan, sample_strong_plan


class RoTTA(TrainedMethod):
    """Learns from a memory of recent and certain images, balanced over the predicted classes, with a teacher.

    A student learns to predict for strongly augmented images what its teacher, whose weights follow slowly, predicts
    for the images themselves; before, the teacher predicts the batch. Images in memory keep the correction of their own
    batch.

    The defaults are those of RoTTA's own code. Models with BatchNorm use `norm_statistics` where that code averages
    statistics over batches.

    Args:
        capacity: maximum number of images in the memory; also, a step is taken after every so many images.
        decay: share of the teacher's weights that a step of the student leaves.
    """

    capacity: Count = 64
    decay: Share = 0.999

    def __post_init__(self) -> None:
        super().__post_init__()
        self.memory: Entries  # with the image's number in the stream, `order`
        empty = self.no_images()
        self.add_state("memory", {**empty, "order": empty["labels"]})
        self.seen: int
        self.add_state("seen", 0)
        self.teacher: dict[str, Tensor]
        self.add_state("teacher", self.weights.initial)
        self.generator: torch.Generator
        self.add_state("generator", torch.Generator().manual_seed(self.seed))

    def _adapt(self, batch: Batch) -> Tensor:
        with self.weights.replaced(self.teacher):
            encoded = self.encode(batch)
            logits = self.classify(encoded)
        entries = self.to_memory(batch, encoded, logits, entropy(logits.detach()))
        entries["order"] = self.seen + torch.arange(len(logits))
        ends = [*range(self.capacity - self.seen % self.capacity, len(logits), self.capacity), len(logits)]
        for start, end in zip([0, *ends], ends, strict=False):
            self._remember({name: rows[start:end] for name, rows in entries.items()})
            if self.seen % self.capacity == 0:
                self._learn()
        return logits

    def _learn(self) -> None:
        """Take a step of the student on the images in memory, and let the teacher follow."""
        images = self.memory["images"].float() / 255
        plan = sample_strong_plan(images.shape, self.generator, shared=self.follows_reference)
        with self.weights.replaced(self.teacher):
            targets = self.classify(self.recall(self.memory)).softmax(dim=-1)
        logits = self.classify(self.recall(self.memory, apply_strong_plan(images, plan)))
        ages = to_device((self.seen - self.memory["order"]).float() / self.capacity, logits.device)
        self.step(((-ages).sigmoid() * F.cross_entropy(logits, targets, reduction="none")).mean())
        self.teacher = lerp(self.weights.parameters, self.teacher, self.decay)

    def _remember(self, new: Entries) -> None:
        """Enter images one by one. Where there is no room for one, it replaces the entry of the highest score, or none.

        The score grows with age and entropy. A class that has its share of the memory replaces an image of its own,
        others one of the largest classes.
        """
        classes = len(self.classifier.class_names)
        entries = {name: torch.cat([rows, new[name]]) for name, rows in self.memory.items()}
        labels, order, entropies = (entries[name].tolist() for name in ("labels", "order", "entropies"))
        kept = list(range(len(self.memory["labels"])))

        def score(entry: int) -> float:
            age: float = (self.seen - order[entry]) / self.capacity
            uncertainty: float = entropies[entry] / math.log(classes)
            return 1 / (1 + math.exp(-age)) + uncertainty

        for image in range(len(kept), len(labels)):
            counts = Counter(labels[entry] for entry in kept)
            has_share = counts[labels[image]] >= self.capacity / classes
            if has_share or len(kept) == self.capacity:
                largest = {label for label in counts if counts[label] == max(counts.values())}
                rivals = {labels[image]} if has_share else largest
                worst = max((entry for entry in kept if labels[entry] in rivals), key=score)
                if score(worst) > score(image):
                    kept.remove(worst)
                    kept.append(image)
            else:
                kept.append(image)
            self.seen += 1
        self.memory = {name: select(rows, torch.tensor(kept, dtype=torch.long)) for name, rows in entries.items()}

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        """Return the mean over batches of a stream with a full memory, which each step encodes twice."""
        passes = super().expected_passes(batch, options)
        passes.images += 2 * batch.images + batch.negatives
        passes.images_with_gradient = batch.images
        return passes
