"""CLIPArTT (Vargas Hakim et al. 2025, "CLIPArTT: Adaptation of CLIP to New Domains at Test Time")."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch, Encoded
from tta_panda.methods.losses import matching_loss
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models.base import VisionLanguageModel
from tta_panda.models.prompts import CLIPARTT
from tta_panda.options import Count
from tta_panda.transfers import to_device, to_host

Captions = dict[tuple[int, ...], Tensor]
"""Unit text features (D,) by the classes that a caption names."""


class CLIPArTT(TrainedMethod):
    """Matches images with captions of their most probable classes, in several steps from the initial weights per batch.

    Nothing persists over batches. Batches whose images all have the same caption, such as single images, are not
    trained on.

    Args:
        lr: learning rate of Adam.
        steps: number of steps per batch.
        candidates: number of classes that a caption names, as in "a photo of a cat or dog or bird".
    """

    use_of_text = "describes images by new captions"
    extra_passes = 1

    steps: Count = 10
    candidates: Count = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.named = min(self.candidates, len(self.classifier.class_names))

    def _adapt(self, batch: Batch) -> Tensor:
        self.weights.reset()
        captions: Captions = {}
        for _ in range(self.steps):
            encoded = self.encode(batch)
            classes = to_host(self.classify(encoded).detach().topk(self.named, dim=1).indices)[0]  # (B, c)
            if (classes == classes[0]).all():  # the gradient is zero, and Adam would magnify its rounding errors
                break
            self.step(self._loss(encoded, classes, captions))
        with torch.no_grad():
            return self.classify(self.encode(batch))

    def _loss(self, encoded: Encoded, classes: Tensor, captions: Captions) -> Tensor:
        texts = self._describe(classes, captions)  # (B, D)
        # The correction of a caption's logit is the mean of those of its classes.
        own = to_device(classes, encoded.features.device)
        bias = None if encoded.bias is None else encoded.bias[:, own].mean(dim=-1)  # (B, B)
        matches = self.classify(encoded._replace(bias=bias), texts)
        return matching_loss(matches, encoded.features, texts, transpose=self.follows_reference)

    @torch.no_grad()
    def _describe(self, classes: Tensor, captions: Captions) -> Tensor:
        """Return unit text features (B, D) of captions that name these classes (B, c); encode those that are new."""
        named = [tuple(row) for row in classes.tolist()]
        if new := [each for each in dict.fromkeys(named) if each not in captions]:
            names, model = self.classifier.class_names, cast(VisionLanguageModel, self.classifier.model)
            texts = [CLIPARTT[0].replace("{}", " or ".join(names[k] for k in each)) for each in new]
            captions |= zip(new, self.classifier.embed(model.encode_text(texts)), strict=True)
            self.passes.count("texts", len(texts), False)
        return torch.stack([captions[each] for each in named])

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        passes.images_with_gradient *= options["steps"]
        passes.texts = options["steps"] * batch.images
        return passes
