"""The same views picture by picture, with Pillow and torchvision: what the batched code is measured against."""

from __future__ import annotations

import torch
from PIL import Image, ImageOps
from torch import Tensor
from torchvision.transforms import InterpolationMode  # type: ignore[import-untyped]
from torchvision.transforms.functional import hflip, resized_crop, to_tensor  # type: ignore[import-untyped]

from tta_panda.views.plan import NO_OPERATION, OPERATIONS, ViewPlan


def apply_view_plan_by_picture(picture: Image.Image, plan: ViewPlan, image: int) -> Tensor:
    """The planned views (V, 3, H, W) of one RGB picture, which is number `image` of the plan."""
    return torch.stack([_view(picture, plan, image, view) for view in range(plan.count)])


def _view(picture: Image.Image, plan: ViewPlan, image: int, view: int) -> Tensor:
    top, left, height, width = plan.boxes[image, view].tolist()
    size = [plan.height, plan.width]
    crop = resized_crop(picture, top, left, height, width, size, InterpolationMode.BILINEAR)
    if plan.flips[image, view]:
        crop = hflip(crop)
    weights = plan.weights[image, view].tolist()
    mixed: Tensor = weights[0] * to_tensor(crop)
    chains = zip(plan.operations[image, view].tolist(), plan.strengths[image, view].tolist(), weights[1:], strict=True)
    for operations, strengths, weight in chains:
        changed = crop
        for operation, strength in zip(operations, strengths, strict=True):
            if operation != NO_OPERATION:
                changed = apply_operation(changed, OPERATIONS[operation], strength)
        mixed += weight * to_tensor(changed)
    return mixed


def apply_operation(picture: Image.Image, name: str, strength: float) -> Image.Image:
    match name:
        case "autocontrast":
            return ImageOps.autocontrast(picture)
        case "equalize":
            return ImageOps.equalize(picture)
        case "posterize":
            return ImageOps.posterize(picture, int(strength))
        case "solarize":
            return ImageOps.solarize(picture, int(strength))
        case "rotate":
            return picture.rotate(strength, resample=Image.Resampling.BILINEAR)
        case "shear_x":
            return _transform(picture, (1, strength, 0, 0, 1, 0))
        case "shear_y":
            return _transform(picture, (1, 0, 0, strength, 1, 0))
        case "translate_x":
            return _transform(picture, (1, 0, strength, 0, 1, 0))
        case "translate_y":
            return _transform(picture, (1, 0, 0, 0, 1, strength))
    raise ValueError(name)


def _transform(picture: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)
