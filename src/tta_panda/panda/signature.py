"""Signatures: a few numbers that tell how an image is corrupted, and depend little on what it shows.

Noise, blur and compression change how much neighbouring pixels differ, from one order of differences to the next. The
ratios of these orders hardly depend on contrast, or on the object. Which statistics separate corruptions best was
measured on validation symbols and on photographs with known corruptions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tta_panda.chunks import in_chunks

_FLOATS_AT_ONCE = 1 << 18  # fits into the cache of a CPU
_SMALLEST = 1e-4  # difference of pixels below which images are considered flat


@torch.no_grad()
def signatures(images: Tensor) -> Tensor:
    """Return the signatures (B, 4) of images (B, 3, H, W), uint8 or floats in [0, 1].

    They are logarithms: of the fourth-order difference of grey values along both sides, and the ratios of fourth to
    second order, of second to first order along one side, and of colour to grey at second order.
    """
    at_once = max(1, _FLOATS_AT_ONCE // images[0].numel()) if images.device.type == "cpu" else len(images)
    return in_chunks(lambda chunk: _signatures(images[chunk]), len(images), at_once)


def _signatures(images: Tensor) -> Tensor:
    values = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    grey = values.mean(dim=1, keepdim=True)  # (B, 1, H, W)
    across, down = grey.diff(dim=3), grey.diff(dim=2)
    both = across.diff(dim=2)
    first, second = _size(across, down), _size(across.diff(dim=3), down.diff(dim=2))
    diagonal, fourth = _size(both), _size(both.diff(dim=3).diff(dim=2))
    colour = _size((values - grey).diff(dim=3).diff(dim=2))
    return torch.stack([fourth, fourth - diagonal, second - first, colour - diagonal], dim=1)


def _size(*differences: Tensor) -> Tensor:
    """Return the logarithm (B,) of the mean absolute difference; small images may have none."""
    sizes = [each.abs().sum(dim=(1, 2, 3)) / max(1, each[0].numel()) for each in differences]
    return (torch.stack(sizes).mean(dim=0) + _SMALLEST).log()
