"""Where methods get their image features from, and the one place that knows whether these are debiased."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tta_panda.models.base import VisionLanguageModel, ZeroShotClassifier
from tta_panda.panda import Batch, Debiaser, Encoded, Panda, split_encoded


class Features:
    """Image features for one stream.

    A batch goes through three steps, kept apart so that methods can repeat or share them: `draw` its negatives, once;
    `encode` images and negatives in one pass; `debias` what came out. Without Panda the first and last do nothing.
    """

    def __init__(self, classifier: ZeroShotClassifier, debias: Panda | None, seed: int):
        self.classifier = classifier
        active = debias is not None and not debias.is_off
        self.debiaser = Debiaser(debias, classifier.model.negative_patch_size, seed) if debias and active else None

    def draw(self, images: Tensor) -> Batch:
        """The batch at the model's input size, with the negatives that all its passes use."""
        prepared = self.classifier.model.prepare(images)
        return Batch(prepared) if self.debiaser is None else self.debiaser.draw(prepared)

    def encode(self, batch: Batch, model: VisionLanguageModel | None = None) -> Encoded:
        """Unit embeddings from one pass over B+M images, by `model` where a method trains its own."""
        images = batch.images if batch.negatives is None else torch.cat([batch.images, batch.negatives])
        return split_encoded((model or self.classifier.model).encode_image(images), batch)

    @torch.no_grad()
    def encode_frozen(self, images: Tensor) -> Encoded:
        """`draw` and `encode` for methods that leave the encoder alone."""
        return self.encode(self.draw(images))

    def debias(self, encoded: Encoded) -> Tensor:
        """The features (B, D) that the method works with."""
        if self.debiaser is None:
            return encoded.features
        return self.debiaser.debias(encoded, self.classifier.text_features, self.classifier.logit_scale)

    def reset(self) -> None:
        if self.debiaser is not None:
            self.debiaser.reset()

    def state_dict(self) -> dict[str, Any]:
        return {} if self.debiaser is None else self.debiaser.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.debiaser is not None:
            self.debiaser.load_state_dict(state)
