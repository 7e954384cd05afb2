"""Prepare batches for a model: check them, convert pictures to tensors, resize and crop on the model's device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.images import Framing, Interpolation, as_framing, centre_offset, read_image
from tta_panda.transfers import to_device

Picture = Image.Image | NDArray[np.uint8] | Tensor
Images = Tensor | Sequence[Picture]
"""A batch (B, 3, H, W), or pictures of any sizes: Pillow images, arrays (H, W, 3) of uint8, tensors (3, H, W)."""

_MARGIN = 0.3  # resampling overshoots [0, 1] by a quarter at most; more means another range (0-255, or normalised)


def as_batch(images: Images, fit: int | Framing) -> Tensor:
    """Stack pictures to a batch, resizing and cropping each if their sizes differ; return a batch unchanged.

    Pillow images and arrays are decoded, resized and cropped like image files. The batch is on the device of the first
    picture.
    """
    if not isinstance(images, list | tuple) or not images:
        return images  # type: ignore[return-value]  # `check_images` reports invalid types
    tensors = [_as_tensor(picture, fit, index) for index, picture in enumerate(images)]
    if len({(tensor.shape, tensor.dtype) for tensor in tensors}) > 1:
        for tensor in tensors:
            check_images(tensor[None])
        tensors = [fit_images(tensor[None], fit)[0] for tensor in tensors]
    return torch.stack([tensor.to(tensors[0].device) for tensor in tensors])


def _as_tensor(picture: Any, fit: int | Framing, index: int) -> Tensor:
    if isinstance(picture, Tensor):
        return picture
    is_array = isinstance(picture, np.ndarray) and picture.dtype == np.uint8
    if is_array and (picture.ndim == 2 or picture.shape[2:] in ((3,), (4,))):
        picture = Image.fromarray(picture)
    if not isinstance(picture, Image.Image):
        found = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else type(picture).__name__
        raise InvalidInputError(
            f"images[{index}] is {found}; expected a Pillow image, an array (H, W, 3) of uint8, or a tensor (3, H, W)."
        )
    return torch.tensor(read_image(picture, fit)).permute(2, 0, 1)


def prepare_images(images: Tensor, fit: int | Framing, device: torch.device) -> Tensor:
    """Check images, and convert them to float32 in [0, 1], (B, 3, size, size), on the model's device."""
    check_images(images)
    if images.dtype != torch.uint8:
        images = images.float()  # before moving: MPS does not support float64
    return fit_images(to_device(images, device), fit)


def check_prepared(images: Tensor, size: int) -> None:
    """Raise `InvalidInputError` unless these are images that `prepare` returned. Values are not checked."""
    shape = tuple(images.shape) if isinstance(images, Tensor) else ()
    if len(shape) == 4 and shape[1:] == (3, size, size) and images.dtype == torch.float32:
        return
    given = f"{images.dtype} {shape}" if isinstance(images, Tensor) else type(images).__name__
    raise InvalidInputError(
        f"encode_image takes torch.float32 (B, 3, {size}, {size}), got {given}. Call model.prepare(images) first and "
        "pass what it returns."
    )


def check_images(images: Tensor) -> None:
    """Raise `InvalidInputError` unless `images` is a batch of RGB images, uint8 or floats in [0, 1]."""
    if not isinstance(images, Tensor):
        raise InvalidInputError(
            f"images must be a torch.Tensor of shape (B, 3, H, W), got {type(images).__name__}; a numpy array "
            "(B, H, W, 3) becomes one by torch.from_numpy(array).permute(0, 3, 1, 2). method.adapt also takes a list "
            "of pictures."
        )
    if images.ndim != 4 or images.shape[1] != 3:
        hint = " Add the batch dimension with images[None]." if images.ndim == 3 and images.shape[0] == 3 else ""
        hint = hint or (" Move channels first with images.permute(0, 3, 1, 2)." if images.shape[-1:] == (3,) else "")
        raise InvalidInputError(f"images must have the shape (B, 3, H, W), got {tuple(images.shape)}.{hint}")
    if 0 in images.shape:
        raise InvalidInputError(f"The batch is empty: images have the shape {tuple(images.shape)}.")
    if images.is_meta or images.layout != torch.strided:
        raise InvalidInputError(f"images must be a dense tensor with values, got {images.layout} on {images.device}.")
    if images.dtype == torch.uint8:
        return
    if not images.is_floating_point():
        raise InvalidInputError(
            f"images must be uint8 or floats in [0, 1], got {images.dtype}; convert with images.to(torch.uint8)."
        )
    low, high = torch.stack(images.aminmax()).tolist()
    if not (low > -float("inf") and high < float("inf")):  # also false for NaN
        broken = (~images.isfinite().flatten(1).all(dim=1)).nonzero().flatten().tolist()
        raise InvalidInputError(
            f"Images must be finite; NaN or infinite values in image(s) {broken[:10]} of the batch."
        )
    if low < -_MARGIN or high > 1 + _MARGIN:
        raise InvalidInputError(
            f"Float images must be in [0, 1], got values from {low:.3g} to {high:.3g}. Pass images before "
            "normalisation (the model normalises), and 0-255 images as uint8."
        )


def fit_images(images: Tensor, fit: int | Framing) -> Tensor:
    """Resize and crop to floats (B, 3, size, size) with a model's framing; a number means CLIP's framing."""
    framing = as_framing(fit)
    images = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    height, width = images.shape[-2:]
    new_width, new_height = framing.resized(width, height)
    if (new_width, new_height) != (width, height):
        # One dimension after the other, clamped in between, as Pillow does: bicubic overshoots at sharp edges.
        images = _resize(images, (height, new_width), framing.interpolation)
        images = _resize(images, (new_height, new_width), framing.interpolation)
    size = framing.size
    top, left = centre_offset(new_height, size), centre_offset(new_width, size)
    return images[..., top : top + size, left : left + size]


def _resize(images: Tensor, shape: tuple[int, int], interpolation: Interpolation) -> Tensor:
    try:
        resized = F.interpolate(images, shape, mode=interpolation, antialias=True, align_corners=False)
    except NotImplementedError:  # some versions of torch cannot do this on MPS
        resized = F.interpolate(images.cpu(), shape, mode=interpolation, antialias=True, align_corners=False)
    return resized.to(images.device).clamp(0, 1)
