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
        parameters: strengths of `"cifar"` or `"imagenet"`; by default chosen by the size of the images.
        frost_textures: photographs of frost, from `load_frost_textures`; generated ones by default.
    """
    how: dict[str, Any] = {"seed": seed, "parameters": parameters, "frost_textures": frost_textures}
    if isinstance(images, list | tuple):
        several = (_corrupt(each, name, severity, how | {"first_index": i}) for i, each in enumerate(images))
        return cast(Kind, type(images)(several))
    return cast(Kind, _corrupt(images, name, severity, how))


def _corrupt(images: Any, name: str, severity: int, how: dict[str, Any]) -> Any:
    """Corrupt images of one type, converted to an array (B, H, W, 3) in between."""
    from PIL import Image

    if isinstance(images, np.ndarray):
        one = images.ndim == 3
        made = corrupt_batch(images[None] if one else images, name, severity, **how)
        return made[0] if one else made
    if isinstance(images, Image.Image):
        return Image.fromarray(_corrupt(np.asarray(images.convert("RGB")), name, severity, how))
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
    corrupted = torch.from_numpy(_corrupt(pixels.movedim(-3, -1).numpy(), name, severity, how)).movedim(-1, -3)
    return (corrupted.to(images.dtype) / 255 if images.is_floating_point() else corrupted).to(images.device)


def corrupt_image(
    image: Images,
    name: str,
    severity: int = 5,
    *,
    rng: np.random.Generator,
    parameters: str | None = None,
    frost_textures: FrostTextures | None = None,
) -> Images:
    """Corrupt one image (H W 3, uint8) with random numbers from `rng`. The input is not changed."""
    _check_images(image, "H W 3")
    if not isinstance(rng, np.random.Generator):
        raise InvalidInputError(f"rng is {rng!r}; expected a numpy Generator, e.g. rng=np.random.default_rng(0).")
    function = _resolve(name, severity, parameters, image, frost_textures)
    return function(np.ascontiguousarray(image), rng)


def corrupt_batch(
    images: Images,
    name: str,
    severity: int = 5,
    *,
    seed: int,
    first_index: int = 0,
    parameters: str | None = None,
    frost_textures: FrostTextures | None = None,
) -> Images:
    """Corrupt a batch (B H W 3, uint8). Image i depends only on `seed` and `first_index + i`, not on the batch."""
    _check_images(images, "B H W 3")
    function = _resolve(name, severity, parameters, images, frost_textures)
    out = np.empty(images.shape, dtype=np.uint8)
    for index, image in enumerate(images):
        out[index] = function(np.ascontiguousarray(image), image_rng(seed, name, severity, first_index + index))
    return out


def image_rng(seed: int, name: str, severity: int, index: int) -> np.random.Generator:
    """The generator that `corrupt_batch` uses for the image at `index` of a data set."""
    for label, value in (("seed", seed), ("index", index)):
        if not isinstance(value, (int, np.integer)) or value < 0:
            raise InvalidInputError(f"{label} is {value!r}; expected a whole number, 0 or more.")
    return np.random.default_rng((int(seed), zlib.crc32(name.encode()), int(severity), int(index)))


def expand_corruptions(names: Sequence[str], severities: Sequence[int] = ()) -> tuple[str, ...]:
    """Expand `all` to the fifteen corruptions, and remove duplicates. Unknown names and severities are errors."""
    for severity in severities:
        _check_severity(severity)
    expanded = [one for name in names for one in (CORRUPTIONS if name == "all" else (name,))]
    for name in expanded:
        if name not in ALL_CORRUPTIONS:
            raise UnknownNameError("corruption", name, ("all", *ALL_CORRUPTIONS))
    return tuple(dict.fromkeys(expanded))


def _resolve(
    name: str, severity: int, parameters: str | None, images: Images, frost_textures: FrostTextures | None
) -> Callable[[Images, np.random.Generator], Images]:
    """Check the arguments; return the corruption with its published strength, to be called for each image."""
    from tta_panda.data.corruptions import functions
    from tta_panda.data.corruptions.severity import PARAMETER_SETS

    if name not in ALL_CORRUPTIONS:
        raise UnknownNameError("corruption", name, ALL_CORRUPTIONS)
    _check_severity(severity)
    if parameters is None:
        parameters = "cifar" if min(images.shape[-3:-1]) <= _LARGEST_SMALL_SIDE else "imagenet"
    if parameters not in PARAMETER_SETS:
        raise UnknownNameError("parameter set", str(parameters), PARAMETER_SETS)
    function, strength = getattr(functions, name), PARAMETER_SETS[parameters][name][int(severity) - 1]
    textures = (frost_textures,) if name == "frost" else ()
    return lambda image, rng: function(image, rng, *strength, *textures)


def _check_severity(severity: int) -> None:
    if severity not in range(1, 6):
        raise InvalidInputError(f"severity is {severity!r}; expected a whole number from 1 to 5, e.g. severity=5.")


def _check_images(images: Images, shape: str) -> None:
    if not isinstance(images, np.ndarray):
        raise InvalidInputError(
            f"Expected a numpy array of shape {shape}; got {type(images).__name__}. "
            "A Pillow image becomes one with np.asarray(image.convert('RGB'))."
        )
    if images.dtype != np.uint8:
        raise InvalidInputError(
            f"Expected dtype uint8 (0 to 255); got {images.dtype}. Values from 0 to 1 become bytes with "
            "(255 * images).round().astype(np.uint8)."
        )
    if images.ndim != len(shape.split()) or images.shape[-1] != 3:
        other = "corrupt_batch" if images.ndim == 4 else "corrupt_image"
        hint = f" For that shape, call {other}()." if images.shape[-1:] == (3,) and images.ndim in (3, 4) else ""
        raise InvalidInputError(f"Expected an array of shape {shape}, channels last; got {images.shape}.{hint}")
    if min(images.shape[-3:-1]) < _SMALLEST_SIDE:
        raise InvalidInputError(
            f"Expected images of at least {_SMALLEST_SIDE} x {_SMALLEST_SIDE} pixels; got {images.shape[-3:-1]}. "
            "Enlarge them first, e.g. with Image.resize((32, 32))."
        )
