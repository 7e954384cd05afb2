"""Where methods get their image features from, and the one place that knows whether these are debiased."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError
from tta_panda.methods.batch import Batch, Encoded
from tta_panda.methods.passes import EncoderPasses
from tta_panda.models.base import Classifier, ImageModel, count_directions
from tta_panda.models.devices import full_precision
from tta_panda.panda import Correction, Debias, Debiaser, Evidence, Negatives, PandaDebiaser
from tta_panda.views import Augmentation, apply_view_plan, sample_view_plan

Encode = Callable[[], Tensor]
"""A pass that may be made."""

IMAGES_PER_PASS = 128
"""Views are made and encoded this many at a time: all views of a batch would take gigabytes."""


@contextlib.contextmanager
def undisturbed(device: torch.device) -> Iterator[None]:
    """Compute in full precision and be free to train, even if the caller is in `inference_mode` or `autocast`."""
    with torch.inference_mode(False), full_precision(device):
        yield


@dataclass(frozen=True)
class Views:
    """The augmented views that a method wants of every image."""

    count: int  # V, the plain image included
    augmentation: Augmentation


class Features:
    """Image features for one stream: plain ones, or debiased.

    Args:
        classifier: whose model encodes, and whose classes corrections are decided by.
        debias: how to debias; None for plain features.
        seed: random seed of negatives and views, each with a generator of its own.
    """

    def __init__(self, classifier: Classifier, debias: Debias | None, seed: int):
        self.classifier = classifier
        self.views: Views | None = None
        """Which views frozen methods get beside the plain features."""
        self.micro_batch: int | None = None
        """At most this many images are encoded at a time where a method trains."""
        self.seed = seed
        self.passes = EncoderPasses()
        self.debiaser = None if debias is None else debias.start(classifier.model.negative_patch_size, seed)
        self.view_generator = torch.Generator()
        self.reset()

    @property
    def active(self) -> Debiaser | None:
        """What decides corrections, if anything can be corrected at all."""
        debiaser = self.debiaser
        return None if debiaser is None or debiaser.fixed == Correction() else debiaser

    @property
    def are_debiased(self) -> bool:
        return self.active is not None

    @property
    def source(self) -> PandaDebiaser | None:
        """Where negatives come from, if any are needed."""
        return None if self.active is None else self.active.source

    @property
    def views_key(self) -> object:
        """Features with equal keys make the same views; None agrees with any."""
        return None if self.views is None else (self.views, self.seed)

    def prepare(self, images: Tensor) -> Batch:
        """The batch at the model's input size, checked."""
        if isinstance(images, Tensor) and images.is_inference():
            images = images.clone()  # autograd cannot use a tensor that was made in inference mode
        prepared = self.classifier.model.prepare(images)
        return Batch(prepared, images if images.dtype == torch.uint8 else images.float())  # MPS knows no float64

    def draw(self, images: Tensor) -> Negatives | None:
        """Negatives of prepared images (B, C, S, S); None where none are needed."""
        return None if self.source is None else self.source.draw(images)

    def encode(self, batch: Batch, model: ImageModel | None = None, class_embeddings: Tensor | None = None) -> Encoded:
        """Embeddings from one pass over B+M images. The first draws the batch's negatives and decides its correction.

        Args:
            batch: what to encode.
            model: in the place of the classifier's, where a method trains its own.
            class_embeddings: (K, D) in the place of the classifier's, where a method adapts them.
        """
        if batch.negatives is None:
            batch.negatives = self.draw(batch.images)
        embedded = self.embed(batch.everything, model, batch.negatives)
        encoded = self.corrected(embedded, class_embeddings, batch.correction)
        batch.correction = encoded.correction
        return encoded

    def embed(self, images: Tensor, model: ImageModel | None = None, negatives: Negatives | None = None) -> Encoded:
        """Embeddings of prepared images from one pass, with the offset if they end with the negatives."""
        encoder = model or self.classifier.model
        raw = in_chunks(lambda piece: encoder.encode_image(images[piece]), len(images), self.micro_batch or len(images))
        self.passes.count("images", raw)
        return self.split(raw, negatives)

    def split(self, raw: Tensor, negatives: Negatives | None = None) -> Encoded:
        """What an encoder gave for images and negatives (B+M, D), as embeddings and offset."""
        raw = raw.float()
        embedded = self.classifier.embed(raw)
        if negatives is None:
            return Encoded(embedded, raw=raw)
        size = len(raw) - len(negatives.images)
        return self.with_offset(Encoded(embedded[:size], raw=raw[:size]), negatives, embedded[size:])

    def with_offset(self, encoded: Encoded, negatives: Negatives, embedded: Tensor) -> Encoded:
        """The same with the offset that follows from the embeddings (M, D) of negatives."""
        assert self.source is not None
        return encoded._replace(offset=self.source.offset(embedded, negatives), negatives=len(embedded))

    def corrected(
        self, encoded: Encoded, class_embeddings: Tensor | None = None, correction: Correction | None = None
    ) -> Encoded:
        """The same with `correction`, or the one that is decided now; without any where nothing is debiased."""
        if self.active is None:
            return encoded._replace(offset=None, correction=Correction())
        if self.source is not None and encoded.offset is None:
            raise InvalidInputError("This batch was encoded without negatives; encode it with the Panda that uses it.")
        correction = correction or self.active.fixed
        return encoded._replace(correction=correction or self.active.decide(self._evidence(encoded, class_embeddings)))

    def _evidence(self, encoded: Encoded, class_embeddings: Tensor | None) -> Evidence:
        scale, features = self.classifier.logit_scale, encoded.features.detach()
        text, directions = self.classifier.class_embeddings, self.classifier.directions
        if class_embeddings is not None and class_embeddings is not text:
            text = class_embeddings.detach()
            directions = count_directions(text)
        offset = None if encoded.offset is None else encoded.offset.detach() @ text.T
        return Evidence(features, features @ text.T + self.classifier.bias / scale, offset, scale, directions)

    @torch.no_grad()
    def encode_frozen(self, batch: Batch) -> Encoded:
        """What methods with a frozen encoder work with, before its correction. Not counted: it may serve several."""
        batch.negatives = self.draw(batch.images)
        encoded = self.split(self.classifier.model.encode_image(batch.everything), batch.negatives)
        return self.encode_views(encoded, batch)

    @torch.no_grad()
    def encode_views(
        self, encoded: Encoded, batch: Batch, encoding: Callable[[Encode], Tensor] = lambda encode: encode()
    ) -> Encoded:
        """The same with the views of its images, if any are wanted; `encoding` may know what would come out."""
        views, originals = self.views, batch.originals
        if views is None:
            return encoded
        plain = encoded.features[:, None]  # (B, 1, D): the first view needs no second pass
        if views.count == 1:
            return encoded._replace(views=plain)
        model, count = self.classifier.model, views.count - 1
        sides = (model.image_size, model.image_size)
        plan = sample_view_plan(views.augmentation, originals.shape, count, self.view_generator, sides)

        def encode(piece: slice) -> Tensor:
            made = apply_view_plan(originals[piece].to(model.device), plan[piece])  # (b, V-1, C, S, S)
            return model.encode_image(made.flatten(0, 1).float())

        raw = encoding(lambda: in_chunks(encode, len(originals), max(1, IMAGES_PER_PASS // count)))
        augmented = self.classifier.embed(raw).view(len(originals), count, -1)
        return encoded._replace(views=torch.cat([plain, augmented], dim=1))

    def count_frozen(self, encoded: Encoded) -> None:
        """Count what this stream alone would have needed of a pass that may have been shared."""
        views = 1 if self.views is None else self.views.count
        self.passes.images += len(encoded.features) * views + (0 if self.source is None else encoded.negatives)

    def reset(self) -> None:
        self.passes = EncoderPasses()
        self.view_generator.manual_seed(self.seed)
        if self.debiaser is not None:
            self.debiaser.reset()

    def state_dict(self) -> dict[str, Any]:
        debiaser = None if self.debiaser is None else self.debiaser.state_dict()
        return {"debiaser": debiaser, "view_generator": self.view_generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.view_generator.set_state(state["view_generator"].cpu())
        if self.debiaser is not None:
            self.debiaser.load_state_dict(state["debiaser"])
