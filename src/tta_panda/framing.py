"""How models frame a picture before they look at it. Only the arithmetic of it, for tensors and for Pillow alike."""

from __future__ import annotations

from typing import Literal, NamedTuple

Interpolation = Literal["bicubic", "bilinear"]


class Framing(NamedTuple):
    """How a picture of any size becomes the square that a model sees.

    CLIP resizes the shorter side to `size` and crops the centre. Others resize to a little more before they crop
    (`shorter`), or to the square at once, whatever the proportions (`squash`).
    """

    size: int
    shorter: int | None = None  # side in pixels before the crop; None: `size`
    squash: bool = False
    interpolation: Interpolation = "bicubic"

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Width and height before the crop. What has the model's size already stays as it is."""
        if (width, height) == (self.size, self.size):
            return width, height
        if self.squash:
            return self.size, self.size
        shorter = self.shorter or self.size
        return (width, height) if min(width, height) == shorter else fitted_sides(width, height, shorter)


def as_framing(fit: int | Framing) -> Framing:
    """CLIP's framing for a plain number of pixels."""
    return fit if isinstance(fit, Framing) else Framing(fit)


def fitted_sides(width: int, height: int, size: int) -> tuple[int, int]:
    """Width and height when the shorter of them becomes `size`; the longer one is rounded down, as torchvision does."""
    short = min(width, height)
    return size * width // short, size * height // short


def centre_offset(side: int, size: int) -> int:
    """Where a centred crop begins; halves are rounded to even numbers, as torchvision does."""
    return round((side - size) / 2)
