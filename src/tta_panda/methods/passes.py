"""What a method sends through the encoders: a measure of its cost that does not depend on the machine."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Literal

from torch import Tensor


@dataclass
class EncoderPasses:
    """Images and texts encoded since the last reset, counted separately where a gradient was computed."""

    batches: int = 0
    images: int = 0
    images_with_gradient: int = 0
    texts: int = 0
    texts_with_gradient: int = 0

    def __sub__(self, earlier: EncoderPasses) -> EncoderPasses:
        """What came after an earlier count."""
        return EncoderPasses(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    def count(self, kind: Literal["images", "texts"], encoded: Tensor, each: int = 1) -> None:
        """Count a pass by the embeddings (N, D) that came out of it, each the mean of so many."""
        field = f"{kind}_with_gradient" if encoded.requires_grad else kind
        setattr(self, field, getattr(self, field) + each * len(encoded))
