"""What a method sends through the encoders: its cost, whatever the machine."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass
class EncoderPasses:
    """Images and texts encoded since the last reset, those that a gradient was computed through apart."""

    batches: int = 0
    images: int = 0
    images_with_gradient: int = 0
    texts: int = 0
    texts_with_gradient: int = 0

    def count_images(self, encoded: Tensor) -> None:
        """Take note of the outcome of a pass over images (N, D)."""
        if encoded.requires_grad:
            self.images_with_gradient += encoded.shape[0]
        else:
            self.images += encoded.shape[0]

    def count_texts(self, encoded: Tensor) -> None:
        """Take note of the outcome of a pass over texts (N, D)."""
        if encoded.requires_grad:
            self.texts_with_gradient += encoded.shape[0]
        else:
            self.texts += encoded.shape[0]
