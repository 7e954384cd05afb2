"""The sizes to which models resize and crop images; used for tensors and for Pillow images."""

from __future__ import annotations

from typing import Literal, NamedTuple

Interpolation = Literal["bicubic", "bilinear"]


class Framing(NamedTuple):
    """How an image of any size becomes the square input of a model.

    CLIP resizes the shorter side to `size` and crops the centre. Other models resize to a little more before they crop
    (`shorter`), or straight to the square, whatever the proportions (`squash`).
    """

    size: int
    shorter: int | None = None  # side in pixels before the crop; None: `size`
    squash: bool = False
    interpolation: Interpolation = "bicubic"

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Width and height before the crop; images that have the model's size already are not resized."""
        if self.squash or (width, height) == (self.size, self.size):
            return self.size, self.size
        # The longer side is rounded down, as torchvision does.
        shorter, short = self.shorter or self.size, min(width, height)
        return shorter * width // short, shorter * height // short


def as_framing(fit: int | Framing) -> Framing:
    """CLIP's framing for a plain number of pixels."""
    return fit if isinstance(fit, Framing) else Framing(fit)


def centre_offset(side: int, size: int) -> int:
    """Where a centred crop begins; halves are rounded to even numbers, as torchvision does."""
    return round((side - size) / 2)
