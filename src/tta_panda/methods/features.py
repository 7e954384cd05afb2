"""Where methods get their image features from, and the one place that knows whether these are debiased."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError
from tta_panda.methods.passes import EncoderPasses
from tta_panda.models.base import Classifier, ImageModel
from tta_panda.panda import Batch, Debiaser, Encoded, Panda, split_encoded
from tta_panda.views import ViewKind, apply_view_plan, sample_view_plan

IMAGES_PER_PASS = 128
"""Views are made and encoded so many at a time: all views of a batch would be gigabytes."""


@dataclass(frozen=True)
class Views:
    """The augmented views that a method wants of every image."""

    count: int  # V, the plain image included
    kind: ViewKind


class Features:
    """Image features for one stream.

    A batch goes through three steps, kept apart so that methods can repeat or share them: `draw` its negatives, once;
    `encode` images and negatives in one pass; `debias` what came out. Without Panda the first and last do nothing.

    Args:
        classifier: whose model encodes, and whose classes the choice of beta looks at.
        debias: how to debias; None, or a beta of 0, for plain features.
        seed: of negatives and views, each with a generator of its own.
        views: which views frozen methods get beside the plain features.
    """

    def __init__(self, classifier: Classifier, debias: Panda | None, seed: int, views: Views | None = None):
        self.classifier = classifier
        self.views = views
        self.seed = seed
        self.passes = EncoderPasses()
        active = debias is not None and not debias.is_off
        self.debiaser = Debiaser(debias, classifier.model.negative_patch_size, seed) if debias and active else None
        self.view_generator = torch.Generator()
        self.reset()

    @property
    def negatives_key(self) -> object:
        """Features with equal keys draw the same negatives; None agrees with any."""
        return None if self.debiaser is None else self.debiaser.negatives_key

    @property
    def views_key(self) -> object:
        """Features with equal keys make the same views; None agrees with any."""
        return None if self.views is None else (self.views, self.seed)

    def plain(self, images: Tensor) -> Batch:
        """The batch at the model's input size, without negatives."""
        return Batch(self.classifier.model.prepare(images))

    def draw(self, images: Tensor) -> Batch:
        """The batch at the model's input size, with the negatives that all its passes use."""
        batch = self.plain(images)
        return batch if self.debiaser is None else self.debiaser.draw(batch.images)

    def encode(self, batch: Batch, model: ImageModel | None = None) -> Encoded:
        """Embeddings from one pass over B+M images, by `model` where a method trains its own."""
        raw = (model or self.classifier.model).encode_image(batch.everything)
        self.passes.count_images(raw)
        return self.split(raw, batch)

    def split(self, raw: Tensor, batch: Batch) -> Encoded:
        """What an encoder gave for images and negatives (B+M, D), where the classifier compares it."""
        return split_encoded(raw, batch, self.classifier.embed)

    @torch.no_grad()
    def encode_frozen(self, images: Tensor) -> Encoded:
        """Everything that methods which leave the encoder alone work with. Not counted: it may serve several."""
        batch = self.draw(images)
        encoded = self.split(self.classifier.model.encode_image(batch.everything), batch)
        return self.encode_views(encoded, batch.images)

    @torch.no_grad()
    def encode_views(self, encoded: Encoded, images: Tensor) -> Encoded:
        """The same with the views of its images, if any are wanted."""
        views = self.views
        if views is None:
            return encoded
        size, _, height, width = images.shape
        plain = encoded.features[:, None]  # (B, 1, D): the first view needs no second pass
        if views.count == 1:
            return encoded._replace(views=plain)
        plan = sample_view_plan(views.kind, size, views.count - 1, height, width, self.view_generator)

        def encode(piece: slice) -> Tensor:
            views_of_piece = apply_view_plan(images[piece], plan[piece])  # (b, V-1, C, H, W)
            raw = self.classifier.model.encode_image(views_of_piece.flatten(0, 1))
            return self.classifier.embed(raw).view(*views_of_piece.shape[:2], -1)

        augmented = in_chunks(encode, size, max(1, IMAGES_PER_PASS // (views.count - 1)))
        return encoded._replace(views=torch.cat([plain, augmented], dim=1))

    def count_frozen(self, encoded: Encoded) -> None:
        """Count what this stream alone would have needed of a pass that may have been shared."""
        size = encoded.features.shape[0]
        negatives = 0 if self.debiaser is None else encoded.negatives
        self.passes.images += size * (1 if self.views is None else self.views.count) + negatives

    def debias(self, encoded: Encoded, text_features: Tensor | None = None) -> Tensor:
        """The features (B, D) that the method works with; `text_features` where it adapts these, too."""
        if self.debiaser is None:
            return encoded.features
        text = self.classifier.text_features if text_features is None else text_features.detach()
        return self.debiaser.debias(encoded, text, self.classifier.logit_scale, self.classifier.bias)

    def debias_views(self, encoded: Encoded) -> Tensor:
        """The features (B, V, D) of all views; every view of an image is shifted as the image is."""
        if encoded.views is None:
            raise InvalidInputError("This batch was encoded without views; encode it with a method that uses them.")
        if self.debiaser is None:
            return encoded.views
        classifier = self.classifier
        shift = self.debiaser.shift(encoded, classifier.text_features, classifier.logit_scale, classifier.bias)
        return encoded.views - shift[:, None]

    def reset(self) -> None:
        self.passes = EncoderPasses()
        self.view_generator.manual_seed(self.seed)
        if self.debiaser is not None:
            self.debiaser.reset()

    def state_dict(self) -> dict[str, Any]:
        debiaser = {} if self.debiaser is None else self.debiaser.state_dict()
        return {**debiaser, "view_generator": self.view_generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.view_generator.set_state(state["view_generator"].cpu())
        if self.debiaser is not None:
            self.debiaser.load_state_dict(state)
