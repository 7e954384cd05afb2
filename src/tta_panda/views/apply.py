"""From images and a plan to views: crops, then chains of operations sorted by operation, then their mixture."""

from __future__ import annotations

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.views.crops import crop_views
from tta_panda.views.operations import FUNCTIONS
from tta_panda.views.plan import NO_OPERATION, OPERATIONS, ViewPlan, sample_view_plan

_PIXELS_AT_ONCE = 1 << 20  # views are made in groups that stay in the processor's cache


def make_views(images: Tensor, views: int, generator: torch.Generator, kind: str = "augmix") -> Tensor:
    """Views (B, views, 3, H, W) of images (B, 3, H, W) in [0, 1]: the image itself, and `views - 1` random ones."""
    _check_images(images)
    if views < 1:
        raise InvalidInputError(f"views must be at least 1, the image itself; got {views}.")
    plan = sample_view_plan(kind, images.shape[0], views - 1, images.shape[2], images.shape[3], generator)
    made = images.new_empty((images.shape[0], views, *images.shape[1:]))
    made[:, 0] = images
    _fill(made[:, 1:], images, plan)
    return made


def apply_view_plan(images: Tensor, plan: ViewPlan) -> Tensor:
    """The planned views (B, V, 3, H, W) of images (B, 3, H, W) in [0, 1], in the images' dtype and on their device.

    Each image is worked on by itself, so parts of a batch give the same bits as the whole:
    `apply_view_plan(images[a:b], plan[a:b])`.
    """
    _check_images(images)
    if (plan.images, plan.height, plan.width) != (images.shape[0], *images.shape[2:]):
        raise InvalidInputError(
            f"The plan is for {plan.images} image(s) of {plan.height}x{plan.width} px, but {images.shape[0]} image(s) of "
            f"{images.shape[2]}x{images.shape[3]} px came; draw one for them, or slice both alike: plan[a:b], images[a:b]."
        )
    made = images.new_empty((images.shape[0], plan.count, *images.shape[1:]))
    _fill(made, images, plan)
    return made


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise InvalidInputError(f"images must have the shape (B, 3, H, W) with B >= 1, got {tuple(images.shape)}.")
    if not images.is_floating_point():
        raise InvalidInputError(f"images must be floats in [0, 1], got {images.dtype}; uint8 by images.float() / 255.")


@torch.no_grad()
def _fill(made: Tensor, images: Tensor, plan: ViewPlan) -> None:
    group = max(1, _PIXELS_AT_ONCE // (plan.height * plan.width))
    grid = images.float().mul(255).round_().clamp_(0, 255).to(torch.uint8)  # what an image file would hold
    for image in range(plan.images):
        for start in range(0, plan.count, group):
            part = slice(start, start + group)
            crops = crop_views(grid[image], plan.boxes[image, part], plan.flips[image, part])
            if plan.kind == "crops":
                made[image, part] = crops.to(made.dtype).div_(255)
                continue
            chains = apply_chains(crops, plan.operations[image, part], plan.strengths[image, part])
            made[image, part] = _mix(crops, chains, plan.weights[image, part])


def apply_chains(crops: Tensor, operations: Tensor, strengths: Tensor) -> Tensor:
    """All chains of all views (V, chains, 3, H, W), step by step; within a step, each operation runs once.

    Results are put one after the other and found again by their place: copying whole images is cheap, scattering is not.
    """
    views, chains = operations.shape[:2]
    images, place = crops, torch.arange(views).repeat_interleave(chains)
    for chosen, strength in zip(operations.flatten(0, 1).T, strengths.flatten(0, 1).T, strict=True):
        order, results = [], []
        for operation in chosen.unique().tolist():
            members = (chosen == operation).nonzero().flatten()
            result = images.index_select(0, place[members].to(images.device))
            if operation != NO_OPERATION:
                result = FUNCTIONS[OPERATIONS[operation]](result, strength[members])
            order.append(members)
            results.append(result)
        images, place = torch.cat(results), torch.cat(order).argsort()
    return images.index_select(0, place.to(images.device)).unflatten(0, (views, chains))


def _mix(crops: Tensor, chains: Tensor, weights: Tensor) -> Tensor:
    """Weighted means, not rounded.

    The published code mixes after normalisation. Normalising a channel is affine and the weights sum to one, so mixing
    in [0, 1] and normalising afterwards is the same.
    """
    weights = (weights / 255).float().to(crops.device)[..., None, None, None]  # (V, 1 + chains, 1, 1, 1)
    mixed = crops.float().mul_(weights[:, 0])
    for chain in range(chains.shape[1]):
        mixed.add_(chains[:, chain].float().mul_(weights[:, 1 + chain]))
    return mixed
