"""The fifteen corruptions of ImageNet-C and CIFAR-C, and the four extra ones, at five severities.

    import tta_panda

    foggy = tta_panda.corrupt(images, "fog", severity=5, seed=0)   # arrays, tensors, Pillow images or a list of them

Small images (up to 64 px on the shorter side) get the published CIFAR-C strengths, larger ones those of ImageNet-C;
`parameters="cifar"` or `"imagenet"` overrides this. Frost is generated; to use photographs of frost instead, pass
`frost_textures=load_frost_textures(folder)`, from `tta_panda.data.corruptions.frost`.
"""

from __future__ import annotations

import fnmatch
import zlib
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from tta_panda.errors import InvalidInputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tta_panda.data.corruptions.frost import FrostTextures

GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
}
CORRUPTIONS: tuple[str, ...] = tuple(name for group in GROUPS.values() for name in group)
EXTRA_CORRUPTIONS: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
ALL_GROUPS = {**GROUPS, "extra": EXTRA_CORRUPTIONS}
ALL_CORRUPTIONS: tuple[str, ...] = CORRUPTIONS + EXTRA_CORRUPTIONS

Images = NDArray[np.uint8]
Kind = TypeVar("Kind")

_LARGEST_SMALL_SIDE = 64
_SMALLEST_SIDE = 8  # below this, three points of the elastic map coincide and a quarter-size image has no pixels


def list_corruptions(pattern: str = "*") -> list[str]:
    """Names of corruptions that match a shell wildcard: the fifteen of the benchmarks, then the four extra ones."""
    return fnmatch.filter(ALL_CORRUPTIONS, pattern)


def corrupt(
    images: Kind,
    name: str,
    severity: int = 5,
    *,
    seed: int = 0,
    first_index: int = 0,
    parameters: str | None = None,
    frost_textures: FrostTextures | None = None,
) -> Kind:
    """Corrupt images, and return them as they were passed: an array for an array, a tensor for a tensor, and so on.

    Args:
        images: an array (H, W, 3) or (B, H, W, 3) of uint8; a tensor (3, H, W) or (B, 3, H, W), uint8 or floats in
            [0, 1]; a Pillow image (the result is RGB); or a list of these. The input is not changed.
        name: one of `list_corruptions()`.
        severity: 1 to 5.
        seed: random seed. The result for an image depends only on its position and the seed.
        first_index: position of the first image, if the images are a part of a data set.
        parameters: strengths of `"cifar"` or `"imagenet"`; by default chosen by the size of the images.
        frost_textures: photographs of frost, from `load_frost_textures`; generated ones by default.
    """
    if isinstance(images, list | tuple):
        how: dict[str, Any] = {"seed": seed, "parameters": parameters, "frost_textures": frost_textures}
        several = (corrupt(each, name, severity, first_index=first_index + i, **how) for i, each in enumerate(images))
        return cast(Kind, type(images)(several))

    def corrupt_array(array: Images) -> Images:
        return _corrupt_array(array, name, severity, seed, first_index, parameters, frost_textures)

    if isinstance(images, np.ndarray):
        return cast(Kind, corrupt_array(images))
    from PIL import Image

    if isinstance(images, Image.Image):
        return cast(Kind, Image.fromarray(corrupt_array(np.asarray(images.convert("RGB")))))
    return cast(Kind, _corrupt_tensor(images, corrupt_array))


def _corrupt_tensor(images: Any, corrupt_array: Callable[[Images], Images]) -> Any:
    """Corrupt a tensor, which is converted to an array of bytes and back."""
    import torch

    if not isinstance(images, torch.Tensor):
        raise InvalidInputError(
            f"Expected an array, a tensor, a Pillow image or a list of them; got {type(images).__name__}."
        )
    if images.ndim not in (3, 4) or images.shape[-3] != 3:
        raise InvalidInputError(f"Expected a tensor (3, H, W) or (B, 3, H, W); got the shape {tuple(images.shape)}.")
    pixels = images.detach().cpu()
    if images.is_floating_point():
        if pixels.numel() and not (pixels.min() >= 0 and pixels.max() <= 1):  # also for NaN
            raise InvalidInputError("Float images must be in [0, 1]; pass images before normalisation.")
        pixels = (255 * pixels.float()).round().to(torch.uint8)
    corrupted = torch.from_numpy(corrupt_array(pixels.movedim(-3, -1).numpy())).movedim(-1, -3)
    return (corrupted.to(images.dtype) / 255 if images.is_floating_point() else corrupted).to(images.device)


def _corrupt_array(
    images: Images,
    name: str,
    severity: int,
    seed: int,
    first_index: int,
    parameters: str | None,
    frost_textures: FrostTextures | None,
) -> Images:
    """Corrupt (H W 3) or (B H W 3). Each image has a generator of its own, so that it does not depend on the others."""
    _check_images(images)
    for label, value in (("seed", seed), ("first_index", first_index)):
        if not isinstance(value, (int, np.integer)) or value < 0:
            raise InvalidInputError(f"{label} is {value!r}; expected a whole number, 0 or more.")
    function = corruption(name, severity, images.shape, parameters, frost_textures)
    batch = images if images.ndim == 4 else images[None]
    out = np.empty(batch.shape, dtype=np.uint8)
    for index, image in enumerate(batch, int(first_index)):
        rng = np.random.default_rng((int(seed), zlib.crc32(name.encode()), int(severity), index))
        out[index - first_index] = function(np.ascontiguousarray(image), rng)
    return out if images.ndim == 4 else out[0]


def expand_corruptions(names: Sequence[str], severities: Sequence[int] = ()) -> tuple[str, ...]:
    """Expand `all` to the fifteen corruptions, and remove duplicates. Unknown names and severities are errors."""
    for severity in severities:
        _check_severity(severity)
    expanded = [one for name in names for one in (CORRUPTIONS if name == "all" else (name,))]
    for name in expanded:
        if name not in ALL_CORRUPTIONS:
            raise UnknownNameError("corruption", name, ("all", *ALL_CORRUPTIONS))
    return tuple(dict.fromkeys(expanded))


def corruption(
    name: str,
    severity: int,
    shape: tuple[int, ...],
    parameters: str | None = None,
    frost_textures: FrostTextures | None = None,
) -> Callable[[Images, np.random.Generator], Images]:
    """Return the function that corrupts an image (H W 3) of a shape (... H W 3), with its published strength."""
    from tta_panda.data.corruptions import functions
    from tta_panda.data.corruptions.severity import PARAMETER_SETS

    if name not in ALL_CORRUPTIONS:
        raise UnknownNameError("corruption", name, ALL_CORRUPTIONS)
    _check_severity(severity)
    if parameters is None:
        parameters = "cifar" if min(shape[-3:-1]) <= _LARGEST_SMALL_SIDE else "imagenet"
    if parameters not in PARAMETER_SETS:
        raise UnknownNameError("parameter set", str(parameters), PARAMETER_SETS)
    function, strength = getattr(functions, name), PARAMETER_SETS[parameters][name][int(severity) - 1]
    textures = (frost_textures,) if name == "frost" else ()
    return lambda image, rng: function(image, rng, *strength, *textures)


def _check_severity(severity: int) -> None:
    if severity not in range(1, 6):
        raise InvalidInputError(f"severity is {severity!r}; expected a whole number from 1 to 5, e.g. severity=5.")


def _check_images(images: Images) -> None:
    if images.dtype != np.uint8:
        raise InvalidInputError(
            f"Expected dtype uint8 (0 to 255); got {images.dtype}. Values from 0 to 1 become bytes with "
            "(255 * images).round().astype(np.uint8)."
        )
    if images.ndim not in (3, 4) or images.shape[-1] != 3:
        raise InvalidInputError(f"Expected an array (H, W, 3) or (B, H, W, 3), channels last; got {images.shape}.")
    if min(images.shape[-3:-1]) < _SMALLEST_SIDE:
        raise InvalidInputError(
            f"Expected images of at least {_SMALLEST_SIDE} x {_SMALLEST_SIDE} pixels; got {images.shape[-3:-1]}. "
            "Enlarge them first, e.g. with Image.resize((32, 32))."
        )
