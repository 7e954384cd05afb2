"""From images and a plan to views: crops, then chains of operations sorted by operation, then their mixture."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.views.crops import crop_views
from tta_panda.views.operations import INDIVIDUAL, SHARED
from tta_panda.views.plan import NO_OPERATION, OPERATIONS, ViewPlan, sample_view_plan

_PIXELS_AT_ONCE = 1 << 19  # views are made in groups that stay in the processor's cache


def make_views(
    images: Tensor,
    views: int,
    generator: torch.Generator,
    augmentation: str = "augmix",
    plain: Tensor | None = None,
) -> Tensor:
    """Views (B, views, 3, H, W) of images: each image itself, and `views - 1` random ones.

    Args:
        images: (B, 3, H, W), floats in [0, 1] or uint8; crops are taken from these.
        views: views per image.
        generator: a generator on the CPU.
        augmentation: `"augmix"` or `"crops"`.
        plain: (B, 3, h, w), the images at the size of the views; by default the images themselves.
    """
    _check_images(images)
    if views < 1:
        raise InvalidInputError(f"views must be at least 1, the image itself; got {views}.")
    first = images if plain is None else plain
    if not first.is_floating_point():
        first = first.float() / 255
    _, channels, height, width = first.shape
    plan = sample_view_plan(augmentation, images.shape, views - 1, generator, (height, width))
    made = first.new_empty((images.shape[0], views, channels, height, width))
    made[:, 0] = first
    _fill(made[:, 1:], images, plan)
    return made


def apply_view_plan(images: Tensor, plan: ViewPlan) -> Tensor:
    """The planned views (B, V, 3, h, w) of images (B, 3, H, W), floats in [0, 1] or uint8, on their device.

    Views have the dtype of float images, and are float32 for uint8. Each image is processed separately, so parts of a
    batch give the same bits as the whole: `apply_view_plan(images[a:b], plan[a:b])`.
    """
    _check_images(images)
    batch, _, height, width = images.shape
    if (len(plan), plan.height, plan.width) != (batch, height, width):
        raise InvalidInputError(
            f"The plan is for {len(plan)} image(s) of {plan.height}x{plan.width} px, but {batch} image(s) of "
            f"{height}x{width} px were given; draw a plan for them, or slice images and plan alike."
        )
    dtype = images.dtype if images.is_floating_point() else torch.float32
    made = torch.empty((batch, plan.count, 3, *plan.sides), dtype=dtype, device=images.device)
    _fill(made, images, plan)
    return made


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise InvalidInputError(f"images must have the shape (B, 3, H, W) with B >= 1, got {tuple(images.shape)}.")
    if not images.is_floating_point() and images.dtype != torch.uint8:
        raise InvalidInputError(f"images must be floats in [0, 1] or uint8, got {images.dtype}.")


def _fill(made: Tensor, images: Tensor, plan: ViewPlan) -> None:
    """Write the planned views of `images` to `made` (B, V, 3, h, w)."""
    if images.device.type == "cpu":
        # glibc keeps as much freed memory as the largest block it has seen freed (up to 32 MiB), instead of returning
        # it to the system after each operation: page faults can take a third of the time. This block is never touched,
        # so it costs nothing.
        torch.empty(30 << 20, dtype=torch.uint8)
    grid = images if images.dtype == torch.uint8 else images.detach().float().mul(255).round_().clamp_(0, 255).byte()
    groups = max(1, math.ceil(plan.count * plan.sides[0] * plan.sides[1] / _PIXELS_AT_ONCE))
    size = max(1, math.ceil(plan.count / groups))
    tasks = [(image, slice(at, at + size)) for image in range(len(plan)) for at in range(0, plan.count, size)]

    @torch.no_grad()  # holds for one thread only
    def fill_group(task: tuple[int, slice]) -> None:
        image, part = task
        crops = crop_views(grid[image], plan.boxes[image, part], plan.flips[image, part], plan.sides)
        if plan.augmentation == "crops":
            made[image, part] = crops.float().div_(255)
        else:
            chains = _apply_chains(crops, plan.operations[image, part], plan.strengths[image, part])
            made[image, part] = _mix(crops, chains, plan.weights[image, part])

    _run(fill_group, tasks, images.device)


def _run(
    function: Callable[[tuple[int, slice]], None], tasks: Sequence[tuple[int, slice]], device: torch.device
) -> None:
    """Call `function` with each task: on the CPU on as many threads as torch may use, elsewhere one after the other.

    Operations of some ten microseconds gain little from being split among threads. Each task is computed by a single
    thread, so results do not depend on the number of threads.
    """
    allowed = torch.get_num_threads()
    threads = min(allowed, len(tasks)) if device.type == "cpu" else 1
    if threads < 2:
        for task in tasks:
            function(task)
        return
    try:
        # The number applies to the thread that sets it, and to threads that are started later.
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            list(pool.map(function, tasks))
    finally:
        torch.set_num_threads(allowed)


def _apply_chains(crops: Tensor, operations: Tensor, strengths: Tensor) -> list[list[Tensor]]:
    """For each chain, the results (3, H, W) of all views; within a step, each operation runs once for all of them."""
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
    """The (view, chain, strength) that are processed together: by operation, and by strength where that is shared."""
    groups = defaultdict(list)
    chosen, given = operations.tolist(), strengths.tolist()
    for view, chain in (operations != NO_OPERATION).nonzero().tolist():
        name, strength = OPERATIONS[chosen[view][chain]], given[view][chain]
        groups[name, int(strength) if name in SHARED else None].append((view, chain, strength))
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
