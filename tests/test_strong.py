"""Strong augmentation against torchvision, image by image."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision.transforms.functional as tv
from torch import Tensor
from torchvision.transforms import InterpolationMode

from tta_panda.views.strong import StrongPlan, apply_strong_plan, sample_strong_plan

COLOURS = {
    "brightness": tv.adjust_brightness,
    "contrast": tv.adjust_contrast,
    "saturation": tv.adjust_saturation,
    "hue": tv.adjust_hue,
    "gamma": lambda image, power: tv.adjust_gamma(image.clamp(1e-8, 1), power),
}


def by_torchvision(image: Tensor, plan: StrongPlan, n: int, noise: Tensor | None) -> Tensor:
    height, width = image.shape[1:]
    for name in plan.order:
        image = COLOURS[name](image, float(plan.factors[name][n]))
    mode = "reflect" if noise is None else "edge"
    image = tv.pad(image, [width // 2, height // 2], padding_mode=mode)
    angle, zoom = math.degrees(plan.angles[n]), float(plan.zooms[n])
    image = tv.affine(image, angle, plan.shifts[n].int().tolist(), zoom, [0.0, 0.0], InterpolationMode.BILINEAR)
    if plan.sigmas is not None:
        image = tv.gaussian_blur(image, 5, float(plan.sigmas[n]))
    image = tv.center_crop(image, [height, width])
    image = image.flip(2) if plan.flips[n] else image
    return (image if noise is None else image + noise).clamp(0, 1)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("degrade", [False, True])
def test_images_are_augmented_as_by_torchvision(degrade, shared):
    images = torch.rand(9, 3, 32, 24, generator=torch.Generator().manual_seed(1))
    images[0] = images[0].mean(dim=0)  # grey has no hue
    draws = torch.Generator().manual_seed(2)
    plan = sample_strong_plan(images.shape, draws, shared=shared, degrade=degrade)
    assert len(plan.flips) == (1 if shared else 9) and len(set(plan.flips.tolist())) == (1 if shared else 2)
    got = apply_strong_plan(images, plan)
    for n, (image, mine) in enumerate(zip(images, got, strict=True)):
        noise = None if plan.noise is None else plan.noise[n]
        expected = by_torchvision(image, plan, 0 if shared else n, noise)
        torch.testing.assert_close(mine, expected, atol=2e-5, rtol=0)
