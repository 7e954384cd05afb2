"""What a method is handed: a batch of images, and what came out of the encoder for it.

Shapes: B images, V views, D feature, K classes, C H W image.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tta_panda.panda import Correction, Negatives


@dataclass(eq=False)
class Batch:
    """The images of one batch, and what is decided once for all passes over it: its negatives and its correction."""

    images: Tensor  # (B, C, S, S), as the model's `prepare` returns them
    originals: Tensor  # (B, C, H, W), as they were given: views are cropped from these
    negatives: Negatives | None = None  # drawn when the batch is first encoded
    correction: Correction | None = None  # decided when its features are first debiased

    @property
    def everything(self) -> Tensor:
        """Images and negatives (B+M, C, S, S), for one pass."""
        return self.images if self.negatives is None else torch.cat([self.images, self.negatives.images])

    def select(self, index: Tensor) -> Batch:
        """Some of the images, with the negatives that they need."""
        return dataclasses.replace(
            self,
            images=self.images[index.to(self.images.device)],
            originals=self.originals[index.to(self.originals.device)],
            negatives=None if self.negatives is None else self.negatives.select(index),
        )


class Encoded(NamedTuple):
    """Embeddings of a batch, unit where the classifier compares directions.

    Offset and correction are kept beside them, so that methods that debias differently can share one pass.
    """

    features: Tensor  # v (B, D)
    offset: Tensor | None = None  # (1, D) or (B, D), of the negatives
    correction: Correction = Correction()
    raw: Tensor | None = None  # f (B, D), features before they were normalised
    views: Tensor | None = None  # (B, V, D), unit; the first view is the plain image
    negatives: int = 0  # M, how many were encoded for this batch

    @property
    def shift(self) -> Tensor | float:
        """What is subtracted from features, (1, D), (B, D) or zero."""
        beta, shift, _ = self.correction
        if self.offset is not None and beta is not None:
            return beta * self.offset
        return 0.0 if shift is None else shift

    @property
    def bias(self) -> Tensor | float:
        """What is added to logits, (K,) or zero."""
        return 0.0 if self.correction.bias is None else self.correction.bias

    @property
    def debiased(self) -> Tensor:
        """d = v - shift (B, D), not normalised again."""
        return self.features - self.shift

    @property
    def debiased_views(self) -> Tensor:
        """The same for all views (B, V, D): every view of an image is shifted as the image is."""
        assert self.views is not None
        shift = self.shift
        return self.views - (shift[:, None] if isinstance(shift, Tensor) else shift)

    def select(self, index: Tensor) -> Encoded:
        """Features, offset and correction of some of the images."""
        offset = self.offset[index] if self.offset is not None and len(self.offset) > 1 else self.offset
        return Encoded(self.features[index], offset, self.correction, negatives=self.negatives)
