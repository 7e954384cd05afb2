"""What a method is handed: a batch of images, and what came out of the encoder for it.

Shapes: B images, V views, D feature, C H W image.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tta_panda.panda import Negatives


@dataclass(eq=False)
class Batch:
    """The images of one batch, and what is decided once for all passes over it: its negatives and its beta."""

    images: Tensor  # (B, C, S, S), as the model's `prepare` returns them
    originals: Tensor  # (B, C, H, W), as they were given: views are cropped from these
    negatives: Negatives | None = None  # drawn when the batch is first encoded
    beta: float | None = None  # chosen when its features are first debiased

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

    The offset is kept beside them, so that many betas can share one pass.
    """

    features: Tensor  # v (B, D)
    offset: Tensor | None = None  # (1, D) or (B, D)
    beta: float | None = None
    raw: Tensor | None = None  # f (B, D), features before they were normalised
    views: Tensor | None = None  # (B, V, D), unit; the first view is the plain image
    negatives: int = 0  # M, how many the offset was made of

    @property
    def shift(self) -> Tensor | float:
        """beta * offset: what is subtracted, (1, D), (B, D) or zero."""
        return 0.0 if self.offset is None or self.beta is None else self.beta * self.offset

    @property
    def debiased(self) -> Tensor:
        """d = v - beta * offset (B, D), not normalised again."""
        return self.features - self.shift

    @property
    def debiased_views(self) -> Tensor:
        """The same for all views (B, V, D): every view of an image is shifted as the image is."""
        assert self.views is not None
        shift = self.shift
        return self.views - (shift[:, None] if isinstance(shift, Tensor) else shift)

    def select(self, index: Tensor) -> Encoded:
        """Features and offset of some of the images."""
        offset = self.offset[index] if self.offset is not None and len(self.offset) > 1 else self.offset
        return Encoded(self.features[index], offset, self.beta, negatives=self.negatives)
