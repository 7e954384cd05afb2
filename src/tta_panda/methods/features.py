"""Image features for methods, plain or debiased: methods themselves do not depend on which.

Shapes: B images, M negatives, V views, D feature, K classes, C H W image.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError
from tta_panda.models.base import Classifier, ImageModel, count_directions, framing_of
from tta_panda.models.devices import full_precision
from tta_panda.models.prepare import Images, as_batch
from tta_panda.panda import Correction, Debias, Debiaser, Evidence, Negatives, PandaDebiaser
from tta_panda.panda.rejection import NegativeEnergies
from tta_panda.state import Stateful
from tta_panda.transfers import Index, select, to_device
from tta_panda.views import Augmentation, ViewPlan, apply_view_plan, sample_view_plan

Encode = Callable[[], Tensor]
"""A function that runs an encoder pass."""

Parts = TypeVar("Parts", Evidence, Correction)

VIEWS_PER_PASS = 128
"""Number of views that are created and encoded at a time: all views of a batch would take gigabytes."""

IMAGES_PER_PASS = 28
"""Maximum number of images that are encoded at a time on a CPU, where larger tensors take longer per image."""


def _moved(parts: Parts, device: torch.device) -> Parts:
    moved: dict[str, Any] = {
        name: part.to(device) for name, part in parts._asdict().items() if isinstance(part, Tensor)
    }
    return parts._replace(**moved)


@contextlib.contextmanager
def isolated(device: torch.device) -> Iterator[None]:
    """Isolate from the caller's `inference_mode`, `autocast` and default device.

    Within the block, computations are in full precision, training is possible, and plans are drawn on the CPU.
    """
    default = contextlib.nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    with torch.inference_mode(False), full_precision(device), default:
        yield


def encode_images(model: ImageModel, images: Tensor) -> Tensor:
    """Return raw embeddings (N, D) of prepared images, encoded in chunks of similar size on a CPU."""
    chunks = math.ceil(len(images) / IMAGES_PER_PASS) if images.device.type == "cpu" else 1
    if chunks <= 1:
        return model.encode_image(images)
    return torch.cat([model.encode_image(chunk) for chunk in images.tensor_split(chunks)])


@dataclass(eq=False)
class Batch:
    """The images of one batch, with its negatives and its correction, which are the same for all passes over it."""

    images: Tensor  # (B, C, S, S), as the model's `prepare` returns them
    originals: Tensor  # (B, C, H, W), as passed by the caller: views are cropped from these
    negatives: Negatives | None = None  # drawn when the batch is first encoded
    correction: Correction | None = None  # decided when its features are first debiased

    @property
    def with_negatives(self) -> Tensor:
        """Images and negatives (B+M, C, S, S), for one pass."""
        return self.images if self.negatives is None else torch.cat([self.images, self.negatives.images])

    def select(self, index: Index) -> Batch:
        """Select some of the images, with the negatives that they need."""
        return dataclasses.replace(
            self,
            images=select(self.images, index),
            originals=select(self.originals, index),
            negatives=None if self.negatives is None else self.negatives.select(index),
            correction=None if self.correction is None else self.correction.select(index),
        )


class Encoded(NamedTuple):
    """Embeddings of a batch, of unit length unless the classifier is a linear head.

    The correction is kept separately, so that methods with different debiasing can share one pass.
    """

    features: Tensor  # v (B, D)
    offset: Tensor | None = None  # (1, D) or (B, D), of the negatives
    shift: Tensor | None = None  # (1, D) or (B, D), to subtract from features
    bias: Tensor | None = None  # (B, K), to add to logits
    raw: Tensor | None = None  # f (B, D), features before they were normalised
    views: Tensor | None = None  # (B, V, D), unit; the first view is the plain image
    negatives: Tensor | None = None  # (M, D), of the negatives encoded for this batch
    images: Tensor | None = None  # (B, C, H, W), as passed by the caller

    def corrected(self, correction: Correction) -> Encoded:
        """Return a copy with the shift and the bias of a correction."""
        beta, shift, bias = correction
        if self.offset is not None and beta is not None:
            shift = beta * self.offset
        return self._replace(shift=shift, bias=bias)

    @property
    def debiased(self) -> Tensor:
        """d = v - shift (B, D), not normalised again."""
        return self.features if self.shift is None else self.features - self.shift

    @property
    def debiased_views(self) -> Tensor:
        """The same for all views (B, V, D): each view of an image is shifted like the image."""
        if self.views is None:
            raise InvalidInputError("This batch was encoded without views; encode it with a method that uses them.")
        return self.views if self.shift is None else self.views - self.shift[:, None]

    def select(self, index: Index) -> Encoded:
        """Select some of the images, with their features, views and correction."""
        shift = select(self.shift, index) if self.shift is not None and len(self.shift) > 1 else self.shift
        bias, views, images = (
            None if each is None else select(each, index) for each in (self.bias, self.views, self.images)
        )
        return Encoded(select(self.features, index), shift=shift, bias=bias, views=views, images=images)

    def split(self) -> list[Encoded]:
        """Return every image as a batch of its own."""
        return [self.select(slice(image, image + 1)) for image in range(len(self.features))]


@dataclass(frozen=True)
class Views:
    """The augmented views that a method needs of every image."""

    count: int  # V, the plain image included
    augmentation: Augmentation


class Features(Stateful):
    """Image features of one stream, plain or debiased.

    Args:
        classifier: its model encodes, and its class embeddings decide corrections.
        debias: how to debias; None for plain features.
        seed: random seed of negatives and views, which have separate generators.
        views: views for frozen methods, in addition to the plain features.
    """

    def __init__(self, classifier: Classifier, debias: Debias | None, seed: int, views: Views | None = None):
        super().__init__()
        self.classifier = classifier
        self.seed = seed
        self.views = views
        self.debiaser: Debiaser | None
        self.add_state("debiaser", debias and debias.start(classifier.model.negative_patch_size, seed))
        self.null = self.add_state("null", NegativeEnergies())
        # Of the latest batch (B,): the shares of negatives that resemble the classes at least as much as each image.
        self.p_values: Tensor | None = self.add_state("p_values", None)
        self.view_generator: torch.Generator
        self.add_state("view_generator", torch.Generator().manual_seed(seed))

    @property
    def active(self) -> Debiaser | None:
        """The debiaser, unless its correction never changes anything."""
        return None if self.debiaser is None or self.debiaser.fixed == Correction() else self.debiaser

    @property
    def source(self) -> PandaDebiaser | None:
        """The debiaser that draws negatives, if any are needed."""
        active = self.active
        return None if active is None else active.source

    @property
    def views_key(self) -> object:
        """Features with equal keys create the same views; None is compatible with any key."""
        return None if self.views is None else (self.views, self.seed)

    def prepare(self, images: Images) -> Batch:
        """Check images and resize them to the model's input size."""
        originals = as_batch(images, framing_of(self.classifier.model))
        if isinstance(originals, Tensor):
            # Keep the caller's tensors out of the autograd graph, which cannot use tensors made in inference mode.
            originals = originals.clone() if originals.is_inference() else originals.detach()
        prepared = self.classifier.model.prepare(originals)
        return Batch(prepared, originals if originals.dtype == torch.uint8 else originals.float())  # MPS has no float64

    def draw(self, images: Tensor) -> Negatives | None:
        """Draw negatives from prepared images (B, C, S, S); None if none are needed."""
        source = self.source
        return None if source is None else source.draw(images)

    @torch.no_grad()
    def encode(self, batch: Batch) -> Encoded:
        """Encode a batch for frozen methods, without correction, so that several of them can share the result."""
        batch.negatives = self.draw(batch.images)
        encoded = self.split(encode_images(self.classifier.model, batch.with_negatives), batch.negatives)
        return self.encode_views(encoded._replace(images=batch.originals), batch)

    def split(self, raw: Tensor, negatives: Negatives | None = None) -> Encoded:
        """Split raw embeddings of images and negatives (B+M, D) into the images' embeddings and the offset."""
        raw = raw.float()
        embedded = self.classifier.embed(raw)
        if negatives is None:
            return Encoded(embedded, raw=raw)
        size = len(raw) - len(negatives.images)
        return self.with_offset(Encoded(embedded[:size], raw=raw[:size]), negatives, embedded[size:])

    def with_offset(self, encoded: Encoded, negatives: Negatives, embedded: Tensor) -> Encoded:
        """Return a copy with the offset, computed from the embeddings (M, D) of negatives."""
        source = self.source
        assert source is not None
        return encoded._replace(offset=source.offset(embedded, negatives), negatives=embedded)

    def decide(self, encoded: Encoded, class_embeddings: Tensor | None = None) -> Correction:
        """Decide the correction of the next batch of the stream; without debiasing, it changes nothing.

        Methods that adapt the class embeddings pass theirs (K, D).
        """
        active = self.active
        if active is None:
            return Correction()
        if active.source is not None and encoded.offset is None:
            raise InvalidInputError("This batch was encoded without negatives; encode it with the method that uses it.")
        own, correction = self.classifier.class_embeddings, active.fixed
        text = own if class_embeddings is None or class_embeddings is own else class_embeddings.detach()
        if correction is None:
            scale, features = self.classifier.logit_scale, encoded.features.detach()
            directions = self.classifier.directions if text is own else count_directions(text)
            offset = None if encoded.offset is None else encoded.offset.detach() @ text.T
            similarities = features @ text.T + self.classifier.bias / scale
            evidence = Evidence(features, similarities, offset, scale, directions, encoded.images)
            if features.device.type == "mps":  # without double precision, which the statistics need
                correction = _moved(active.decide(_moved(evidence, torch.device("cpu"))), features.device)
            else:
                correction = active.decide(evidence)
        if encoded.negatives is not None:
            self._compare_with_negatives(encoded.corrected(correction), encoded.negatives, text)
        return correction

    @torch.no_grad()
    def _compare_with_negatives(self, encoded: Encoded, negatives: Tensor, text: Tensor) -> None:
        """Compute the p-values of a corrected batch; its negatives (M, D) get the mean correction of its images."""
        shift = 0.0 if encoded.shift is None else encoded.shift.mean(dim=0)
        logits = self.classifier.logits(torch.cat([encoded.debiased, negatives - shift]), text)
        if encoded.bias is not None:
            mean = encoded.bias.mean(dim=0).expand(len(negatives), -1)
            logits = logits + torch.cat([encoded.bias, mean])
        energies, size = logits.logsumexp(dim=1), len(encoded.features)
        self.p_values = self.null.p_values(energies[:size], energies[size:])

    def plan_views(self, originals: Tensor) -> ViewPlan:
        """Draw the augmented views of images (B, C, H, W), which the method must have asked for."""
        assert self.views is not None
        sides = (self.classifier.model.image_size,) * 2
        return sample_view_plan(
            self.views.augmentation, originals.shape, self.views.count - 1, self.view_generator, sides
        )

    @torch.no_grad()
    def encode_views(
        self, encoded: Encoded, batch: Batch, run_pass: Callable[[Encode], Tensor] = lambda encode: encode()
    ) -> Encoded:
        """Return a copy with the views of its images, if any are needed; `run_pass` may use a cache."""
        views, originals = self.views, batch.originals
        if views is None:
            return encoded
        plain = encoded.features[:, None]  # (B, 1, D): the first view needs no second pass
        if views.count == 1:
            return encoded._replace(views=plain)
        model, count, plan = self.classifier.model, views.count - 1, self.plan_views(originals)

        def encode(chunk: slice) -> Tensor:
            images = apply_view_plan(to_device(originals[chunk], model.device), plan[chunk])  # (b, V-1, C, S, S)
            return model.encode_image(images.flatten(0, 1).float())

        raw = run_pass(lambda: in_chunks(encode, len(originals), max(1, VIEWS_PER_PASS // count)))
        augmented = self.classifier.embed(raw).view(len(originals), count, -1)
        return encoded._replace(views=torch.cat([plain, augmented], dim=1))
