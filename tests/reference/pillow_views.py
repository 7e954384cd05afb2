"""Views made with Pillow, one picture at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from tta_panda.views.plan import NO_OPERATION, OPERATIONS, ViewPlan


def apply_view_plan_by_picture(picture: Image.Image, plan: ViewPlan, image: int) -> Tensor:
    """The planned views (V, 3, H, W) of an RGB picture, given its index in the plan."""
    return torch.stack([_view(picture, plan, image, view) for view in range(plan.count)])


def _view(picture: Image.Image, plan: ViewPlan, image: int, view: int) -> Tensor:
    top, left, height, width = plan.boxes[image, view].tolist()
    crop = picture.crop((left, top, left + width, top + height))
    for size in ((plan.sides[1], height), (plan.sides[1], plan.sides[0])):  # columns first, in any version of Pillow
        crop = crop.resize(size, Image.Resampling.BILINEAR)
    if plan.flips[image, view]:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    weights = plan.weights[image, view].tolist()
    mixed: Tensor = weights[0] * _to_tensor(crop)
    chains = zip(plan.operations[image, view].tolist(), plan.strengths[image, view].tolist(), weights[1:], strict=True)
    for operations, strengths, weight in chains:
        changed = crop
        for operation, strength in zip(operations, strengths, strict=True):
            if operation != NO_OPERATION:
                changed = PILLOW_OPERATIONS[OPERATIONS[operation]](changed, strength)
        mixed += weight * _to_tensor(changed)
    return mixed


def _affine(picture: Image.Image, *matrix: float) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)


PILLOW_OPERATIONS: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "autocontrast": lambda picture, _: ImageOps.autocontrast(picture),
    "equalize": lambda picture, _: ImageOps.equalize(picture),
    "posterize": lambda picture, bits: ImageOps.posterize(picture, int(bits)),
    "solarize": lambda picture, threshold: ImageOps.solarize(picture, int(threshold)),
    "rotate": lambda picture, degrees: picture.rotate(degrees, resample=Image.Resampling.BILINEAR),
    "shear_x": lambda picture, slope: _affine(picture, 1, slope, 0, 0, 1, 0),
    "shear_y": lambda picture, slope: _affine(picture, 1, 0, 0, slope, 1, 0),
    "translate_x": lambda picture, pixels: _affine(picture, 1, 0, pixels, 0, 1, 0),
    "translate_y": lambda picture, pixels: _affine(picture, 1, 0, 0, 0, 1, pixels),
}


def _to_tensor(picture: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255
