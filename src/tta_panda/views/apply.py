"""From images and a plan to views: crops, then chains of operations sorted by operation, then their mixture."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.views.crops import crop_views
from tta_panda.views.operations import INDIVIDUAL, SHARED
from tta_panda.views.plan import NO_OPERATION, OPERATIONS, ViewPlan, sample_view_plan
from tta_panda.views.threads import run_tasks

_PIXELS_AT_ONCE = 1 << 19  # views are made in groups that stay in the processor's cache


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
            f"The plan is for {plan.images} image(s) of {plan.height}x{plan.width} px, but {images.shape[0]} image(s) "
            f"of {images.shape[2]}x{images.shape[3]} px came; draw one for them, or slice both alike."
        )
    made = images.new_empty((images.shape[0], plan.count, *images.shape[1:]))
    _fill(made, images, plan)
    return made


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise InvalidInputError(f"images must have the shape (B, 3, H, W) with B >= 1, got {tuple(images.shape)}.")
    if not images.is_floating_point():
        raise InvalidInputError(f"images must be floats in [0, 1], got {images.dtype}; uint8 by images.float() / 255.")


def _fill(made: Tensor, images: Tensor, plan: ViewPlan) -> None:
    if images.device.type == "cpu":
        _keep_freed_memory()
    grid = images.detach().float().mul(255).round_().clamp_(0, 255).to(torch.uint8)  # what an image file would hold
    groups = max(1, math.ceil(plan.count * plan.height * plan.width / _PIXELS_AT_ONCE))
    size = max(1, math.ceil(plan.count / groups))
    tasks = [(image, slice(at, at + size)) for image in range(plan.images) for at in range(0, plan.count, size)]

    @torch.no_grad()  # holds for one thread only
    def fill_group(task: tuple[int, slice]) -> None:
        image, part = task
        crops = crop_views(grid[image], plan.boxes[image, part], plan.flips[image, part])
        if plan.kind == "crops":
            made[image, part] = crops.float().div_(255)
        else:
            chains = apply_chains(crops, plan.operations[image, part], plan.strengths[image, part])
            made[image, part] = _mix(crops, chains, plan.weights[image, part])

    run_tasks(fill_group, tasks, images.device)


def _keep_freed_memory() -> None:
    """Let the C library keep what is freed between operations, instead of handing it back and faulting it in again.

    glibc learns how much to keep from the largest block it has seen freed (up to 32 MiB); this one is never touched, so
    it costs nothing. Without it, a third of the time can go into page faults.
    """
    torch.empty(30 << 20, dtype=torch.uint8)


def apply_chains(crops: Tensor, operations: Tensor, strengths: Tensor) -> list[list[Tensor]]:
    """For each chain the results of all views, each (3, H, W); within a step, an operation runs once for all.

    Results stay where they were computed until another operation, or the mixture, gathers them.
    """
    images = [list(crops) for _ in range(operations.shape[1])]
    for step in range(operations.shape[2]):
        for (name, shared), members in _groups(operations[..., step], strengths[..., step]).items():
            found = [images[chain][view] for view, chain, _ in members]
            together = torch.stack(found) if len(found) > 1 else found[0][None]
            if shared is None:
                each = torch.tensor([strength for _, _, strength in members], dtype=torch.float64)
                results = INDIVIDUAL[name](together, each)
            else:
                results = SHARED[name](together, shared)
            for (view, chain, _), result in zip(members, results, strict=True):
                images[chain][view] = result
    return images


def _groups(operations: Tensor, strengths: Tensor) -> dict[tuple[str, int | None], list[tuple[int, int, float]]]:
    """The (view, chain, strength) that can be worked on at once: one operation, and one strength where that matters."""
    groups: dict[tuple[str, int | None], list[tuple[int, int, float]]] = {}
    for view, (chosen, given) in enumerate(zip(operations.tolist(), strengths.tolist(), strict=True)):
        for chain, (operation, strength) in enumerate(zip(chosen, given, strict=True)):
            if operation != NO_OPERATION:
                name = OPERATIONS[operation]
                shared = int(strength) if name in SHARED else None
                groups.setdefault((name, shared), []).append((view, chain, strength))
    return groups


def _mix(crops: Tensor, chains: list[list[Tensor]], weights: Tensor) -> Tensor:
    """Weighted means, not rounded.

    The published code mixes after normalisation. Normalising a channel is affine and the weights sum to one, so mixing
    in [0, 1] and normalising afterwards is the same.
    """
    weights = (weights / 255).float().to(crops.device)[..., None, None, None]  # (V, 1 + chains, 1, 1, 1)
    mixed = crops.float().mul_(weights[:, 0])
    for chain, weight in zip(chains, weights[:, 1:].unbind(dim=1), strict=True):
        mixed.addcmul_(torch.stack(chain).float(), weight)
    return mixed
