"""How CLIP frames a picture: the shorter side is resized, then the centre is cropped. Only the arithmetic of it."""

from __future__ import annotations


def fitted_sides(width: int, height: int, size: int) -> tuple[int, int]:
    """Width and height when the shorter of them becomes `size`; the longer one is rounded down, as torchvision does."""
    short = min(width, height)
    return size * width // short, size * height // short


def centre_offset(side: int, size: int) -> int:
    """Where a centred crop begins; halves are rounded to even numbers, as torchvision does."""
    return round((side - size) / 2)
