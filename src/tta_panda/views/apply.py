"""From images and a plan to views, in groups that threads share."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.views.exact import views_as_pillow
from tta_panda.views.opencv import write_views
from tta_panda.views.plan import ViewPlan, sample_view_plan

_PIXELS_AT_ONCE = 1 << 19  # views are made in groups that stay in the processor's cache
_LARGE = 96 * 96  # pixels of a view from which OpenCV is faster; below, calls take more time than pixels


def make_views(
    images: Tensor,
    views: int,
    generator: torch.Generator,
    augmentation: str = "augmix",
    plain: Tensor | None = None,
    exact: bool = False,
) -> Tensor:
    """Views (B, views, 3, H, W) of images: each image itself, and `views - 1` random ones.

    Args:
        images: (B, 3, H, W), floats in [0, 1] or uint8; crops are taken from these.
        views: views per image.
        generator: a generator on the CPU.
        augmentation: `"augmix"` or `"crops"`.
        plain: (B, 3, h, w), the images at the size of the views; by default the images themselves.
        exact: equal to Pillow's. Otherwise a processor makes large views with OpenCV, in less than half the time; most
            pixels are at most one of 255 grey levels apart.
    """
    _check_images(images)
    if views < 1:
        raise InvalidInputError(f"views must be at least 1, the image itself; got {views}.")
    first = images if plain is None else plain
    if not first.is_floating_point():
        first = first.float() / 255
    _, channels, height, width = first.shape
    plan = sample_view_plan(augmentation, images.shape, views - 1, generator, (height, width))
    made = _new((images.shape[0], views, channels, height, width), first)
    made[:, 0] = first
    _fill(made[:, 1:], images, plan, exact)
    return made


def apply_view_plan(images: Tensor, plan: ViewPlan, exact: bool = False) -> Tensor:
    """The planned views (B, V, 3, h, w) of images (B, 3, H, W), floats in [0, 1] or uint8, on their device.

    Views have the dtype of float images, and are float32 for uint8. Each image is processed separately, so parts of a
    batch give the same bits as the whole: `apply_view_plan(images[a:b], plan[a:b])`. `exact` is as in `make_views`.
    """
    _check_images(images)
    batch, _, height, width = images.shape
    if (len(plan), plan.height, plan.width) != (batch, height, width):
        raise InvalidInputError(
            f"The plan is for {len(plan)} image(s) of {plan.height}x{plan.width} px, but {batch} image(s) of "
            f"{height}x{width} px were given; draw a plan for them, or slice images and plan alike."
        )
    made = _new((batch, plan.count, 3, *plan.sides), images)
    _fill(made, images, plan, exact)
    return made


def _check_images(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise InvalidInputError(f"images must have the shape (B, 3, H, W) with B >= 1, got {tuple(images.shape)}.")
    if not images.is_floating_point() and images.dtype != torch.uint8:
        raise InvalidInputError(f"images must be floats in [0, 1] or uint8, got {images.dtype}.")


def _new(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Memory for views of these images."""
    if like.device.type == "cpu" and like.dtype in (torch.uint8, torch.float32):
        # numpy asks for large pages, which are filled in a quarter of the time.
        return torch.from_numpy(np.empty(shape, np.float32))
    return torch.empty(shape, dtype=like.dtype if like.is_floating_point() else torch.float32, device=like.device)


def _fill(made: Tensor, images: Tensor, plan: ViewPlan, exact: bool) -> None:
    """Write the planned views of `images` to `made` (B, V, 3, h, w)."""
    on_processor = images.device.type == "cpu"
    if on_processor:
        # glibc keeps as much freed memory as the largest block it has seen freed (up to 32 MiB), instead of returning
        # it to the system after each operation: page faults can take a third of the time. This block is never touched,
        # so it costs nothing.
        torch.empty(30 << 20, dtype=torch.uint8)
    by_opencv = on_processor and not exact and math.prod(plan.sides) >= _LARGE
    grid = images if images.dtype == torch.uint8 else images.detach().float().mul(255).round_().clamp_(0, 255).byte()
    groups = max(1, math.ceil(plan.count * plan.sides[0] * plan.sides[1] / _PIXELS_AT_ONCE))
    size = max(1, math.ceil(plan.count / groups))
    tasks = [(image, slice(at, at + size)) for image in range(len(plan)) for at in range(0, plan.count, size)]

    @torch.no_grad()  # holds for one thread only
    def fill_group(task: tuple[int, slice]) -> None:
        image, part = task
        target = made[image, part]
        if by_opencv:
            views = target if target.dtype == torch.float32 else torch.empty(target.shape)
            write_views(views.numpy(), grid[image], plan, image, part)
        else:
            views = views_as_pillow(grid[image], plan, image, part)
        target.copy_(views)  # does nothing where they are the same

    with _single_threaded() as allowed:
        _run(fill_group, tasks, allowed if on_processor else 1)


@contextlib.contextmanager
def _single_threaded() -> Iterator[int]:
    """Keep OpenCV to one thread, and give the number that torch may use, which is the same afterwards.

    Operations of some ten microseconds gain little from being split among threads. Each group is computed by a single
    thread, so results do not depend on the number of threads.
    """
    allowed, allowed_opencv = torch.get_num_threads(), cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield allowed
    finally:
        torch.set_num_threads(allowed)
        cv2.setNumThreads(allowed_opencv)


def _run(function: Callable[[tuple[int, slice]], None], tasks: Sequence[tuple[int, slice]], threads: int) -> None:
    """Call `function` with each task, on this many threads."""
    if min(threads, len(tasks)) < 2:
        for task in tasks:
            function(task)
        return
    # The number applies to the thread that sets it, and to threads that are started later.
    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        list(pool.map(function, tasks))
