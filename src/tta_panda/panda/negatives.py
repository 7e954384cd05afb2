"""Negatives: images of shuffled patches of a batch, which destroys objects but keeps the corruption.

As with any augmentation here, randomness and pixels are separated: a *sampler* draws a `NegativePlan` with an explicit
generator, and `apply_plan` is a pure function of images and plan. Only the chosen patches are copied, not the pool of
all patches.

Shapes: B images, M negatives, P patches per image, C H W image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.transfers import to_device


class PatchGrid(NamedTuple):
    """How an image is divided: `rows` x `columns` square patches, and a border around them."""

    patch_size: int
    rows: int
    columns: int
    height: int  # of the image
    width: int
    centred: bool = True  # False: the patches start at the top left

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    @property
    def top(self) -> int:
        return (self.height - self.rows * self.patch_size) // 2 if self.centred else 0

    @property
    def left(self) -> int:
        return (self.width - self.columns * self.patch_size) // 2 if self.centred else 0

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Width of the border on the left, right, top and bottom, in the order of `torch.nn.functional.pad`."""
        right = self.width - self.columns * self.patch_size - self.left
        bottom = self.height - self.rows * self.patch_size - self.top
        return self.left, right, self.top, bottom


def cut_grid(height: int, width: int, patch_size: int) -> PatchGrid:
    """Return the largest centred grid of whole patches."""
    if patch_size < 1:
        raise InvalidInputError(f"patch_size must be a positive number of pixels, got {patch_size}.")
    if min(height, width) < patch_size:
        raise InvalidInputError(
            f"Images of {height}x{width} px are smaller than one patch of {patch_size}x{patch_size} px; "
            f"pass a patch_size of at most {min(height, width)}."
        )
    return PatchGrid(patch_size, height // patch_size, width // patch_size, height, width)


@dataclass(frozen=True)
class NegativePlan:
    """The patch and image that each cell of each negative is copied from."""

    grid: PatchGrid
    source_image: Tensor  # (M, P) index into the batch
    source_cell: Tensor  # (M, P) index into the image's cells
    border_image: Tensor | None = None  # (M,) whose border is kept; None: the negative's own patches are mirrored


Sampler = Callable[[int, PatchGrid, int, torch.Generator], NegativePlan]
"""(B, grid, M, generator) -> plan."""

SamplerName = Literal["pool", "same_cell", "within_image"]


def sample_pool(batch: int, grid: PatchGrid, count: int, generator: torch.Generator) -> NegativePlan:
    """Sample as in the paper: any patch of the batch may be placed in any cell, and each is used at most once."""
    if batch == 1:
        return sample_within_image(batch, grid, count, generator)
    count = min(count, batch)
    chosen = torch.randperm(batch * grid.cells, generator=generator)[: count * grid.cells].view(count, grid.cells)
    return NegativePlan(grid, chosen // grid.cells, chosen % grid.cells)


def sample_same_cell(batch: int, grid: PatchGrid, count: int, generator: torch.Generator) -> NegativePlan:
    """Sample as in the authors' code: cells keep their positions and are filled from images other than a base image.

    The grid starts at the top left; the strips at the right and at the bottom are those of the base image. With two
    images, the base image is also used, and with a single image, its cells are shuffled. If there are at least two
    cells, a negative never equals an input.
    """
    grid = grid._replace(centred=False)
    if batch == 1:
        return sample_within_image(batch, grid, count, generator)
    base = torch.randint(batch, (count, 1), generator=generator)
    if batch == 2:
        source = torch.randint(batch, (count, grid.cells), generator=generator)
    else:
        source = (base + torch.randint(1, batch, (count, grid.cells), generator=generator)) % batch
    source = _break_copies(source, base, batch, generator)
    cells = torch.arange(grid.cells).expand(count, -1)
    return NegativePlan(grid, source, cells, border_image=base[:, 0])


def sample_within_image(batch: int, grid: PatchGrid, count: int, generator: torch.Generator) -> NegativePlan:
    """Sample as in the paper's ablation: one negative per image, of that image's own patches. `count` is ignored."""
    order = torch.rand(batch, grid.cells, generator=generator, dtype=torch.float32).argsort(dim=1)
    unshuffled = (order == torch.arange(grid.cells)).all(dim=1, keepdim=True)
    order = torch.where(unshuffled, order.roll(1, dims=1), order)  # a negative must not be the image itself
    images = torch.arange(batch).view(-1, 1).expand(-1, grid.cells)
    return NegativePlan(grid, images, order)


def _break_copies(source: Tensor, base: Tensor, batch: int, generator: torch.Generator) -> Tensor:
    """If all cells of a negative come from one image, take one of them from another image."""
    count, cells = source.shape
    if cells == 1:
        return source
    copied = (source == source[:, :1]).all(dim=1)
    place = torch.randint(cells, (count,), generator=generator)
    step = torch.randint(1, batch, (count,), generator=generator)
    other = (source[:, 0] + step) % batch
    if batch > 2:  # keep the base image out of its own negative
        other = torch.where(other == base[:, 0], (other + 1) % batch, other)
        other = torch.where(other == source[:, 0], (other + 1) % batch, other)
    replaced = source.scatter(1, place[:, None], other[:, None])
    return torch.where(copied[:, None], replaced, source)


SAMPLERS: dict[str, Sampler] = {"pool": sample_pool, "same_cell": sample_same_cell, "within_image": sample_within_image}


def sample_plan(sampler: str, images: Tensor, patch_size: int, count: int, generator: torch.Generator) -> NegativePlan:
    """Draw a plan for `count` negatives of a batch of images (B, C, H, W)."""
    if sampler not in SAMPLERS:
        raise UnknownNameError("sampler of negatives", sampler, SAMPLERS)
    grid = cut_grid(images.shape[2], images.shape[3], patch_size)
    return SAMPLERS[sampler](images.shape[0], grid, count, generator)


def apply_plan(images: Tensor, plan: NegativePlan) -> Tensor:
    """Assemble the planned patches to negatives (M, C, H, W), with the dtype and device of the images."""
    grid, p = plan.grid, plan.grid.patch_size
    core = ..., slice(grid.top, grid.top + grid.rows * p), slice(grid.left, grid.left + grid.columns * p)
    patches = images[core].unflatten(3, (grid.columns, p)).unflatten(2, (grid.rows, p))  # (B, C, rows, p, columns, p)
    image, cell = (to_device(index, images.device) for index in (plan.source_image, plan.source_cell))
    by_place = patches.permute(0, 2, 4, 1, 3, 5)
    chosen = by_place[image, cell // grid.columns, cell % grid.columns]  # (M, P, C, p, p), the only copy of pixels
    cells = chosen.unflatten(1, (grid.rows, grid.columns)).permute(0, 3, 1, 4, 2, 5)  # (M, C, rows, p, columns, p)
    negatives: Tensor = cells.flatten(4).flatten(2, 3)
    if not any(grid.padding):
        return negatives
    if plan.border_image is None:
        return _reflect(negatives, grid)
    framed = images[to_device(plan.border_image, images.device)].clone()
    framed[core] = negatives
    return framed


def _reflect(negatives: Tensor, grid: PatchGrid) -> Tensor:
    """Fill the border by mirroring, including the edge pixel; the border is never wider than a patch."""
    left, right, top, bottom = grid.padding
    rows = np.pad(np.arange(negatives.shape[2]), (top, bottom), mode="symmetric")
    columns = np.pad(np.arange(negatives.shape[3]), (left, right), mode="symmetric")
    index = (to_device(torch.from_numpy(each), negatives.device) for each in (rows, columns))
    return negatives.index_select(2, next(index)).index_select(3, next(index))
