"""Negatives are made of the batch's own patches, as the plan says and as the paper asks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.panda import SAMPLERS, Panda, PandaDebiaser, apply_plan, sample_plan
from tta_panda.panda.negatives import PatchGrid

batches = st.integers(1, 12)
patch_sizes = st.integers(1, 9)
sides = st.integers(9, 24)
seeds = st.integers(0, 2**31)
samplers = st.sampled_from(sorted(SAMPLERS))


def numbered(batch: int, height: int, width: int) -> Tensor:
    """Images in which every pixel has a value of its own, so that its origin can be read off."""
    return torch.arange(batch * height * width, dtype=torch.float64).view(batch, 1, height, width).repeat(1, 3, 1, 1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def patches_of(images: Tensor, grid: PatchGrid) -> Tensor:
    """(B, P, C, p, p) by plain slicing."""
    patch_size = grid.patch_size
    cut = [
        images[:, :, grid.top + r * patch_size :, grid.left + c * patch_size :][:, :, :patch_size, :patch_size]
        for r in range(grid.rows)
        for c in range(grid.columns)
    ]
    return torch.stack(cut, dim=1)


@given(batches, sides, sides, patch_sizes, seeds)
@settings(max_examples=30, deadline=None)
def test_pool_uses_every_patch_of_the_batch_at_most_once(batch, height, width, patch_size, seed):
    images = numbered(batch, height, width)
    count = math.ceil(batch / 10)
    plan = sample_plan("pool", images, patch_size, count, generator(seed))
    negatives = apply_plan(images, plan)
    assert negatives.shape == (count, 3, height, width)
    pool = {tuple(patch.flatten().tolist()) for patch in patches_of(images, plan.grid).flatten(0, 1)}
    used = [tuple(patch.flatten().tolist()) for patch in patches_of(negatives, plan.grid).flatten(0, 1)]
    assert set(used) <= pool
    assert len(set(used)) == len(used)


@given(samplers, batches, sides, sides, patch_sizes, seeds)
@settings(max_examples=40, deadline=None)
def test_every_sampler_takes_whole_patches_and_keeps_the_size(sampler, batch, height, width, patch_size, seed):
    images = numbered(batch, height, width)
    untouched = images.clone()
    plan = sample_plan(sampler, images, patch_size, max(1, batch // 2), generator(seed))
    negatives = apply_plan(images, plan)
    assert negatives.shape[1:] == images.shape[1:]
    assert torch.equal(images, untouched)
    pool = {tuple(patch.flatten().tolist()) for patch in patches_of(images, plan.grid).flatten(0, 1)}
    assert all(tuple(patch.flatten().tolist()) in pool for patch in patches_of(negatives, plan.grid).flatten(0, 1))
    assert torch.isin(negatives, images).all()  # borders, too, hold nothing but the batch's own pixels


@given(samplers, batches, seeds)
@settings(max_examples=30, deadline=None)
def test_the_same_generator_gives_the_same_plan(sampler, batch, seed):
    images = numbered(batch, 16, 16)
    first, second = (sample_plan(sampler, images, 4, 2, generator(seed)) for _ in range(2))
    assert torch.equal(first.source_image, second.source_image)
    assert torch.equal(first.source_cell, second.source_cell)


@given(st.integers(1, 6), st.integers(2, 4), seeds)
@settings(max_examples=40, deadline=None)
def test_same_cell_keeps_places_and_never_repeats_an_input(batch, grid_side, seed):
    images = numbered(batch, 4 * grid_side, 4 * grid_side)
    plan = sample_plan("same_cell", images, 4, 5, generator(seed))
    negatives = apply_plan(images, plan)
    assert not any(torch.equal(image, negative) for image in images for negative in negatives)
    if batch > 1:
        assert torch.equal(plan.source_cell, torch.arange(grid_side**2).expand_as(plan.source_image))
    if batch > 2:
        assert (plan.source_image != plan.border_image[:, None]).all()


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_a_single_image_is_never_its_own_negative(sampler):
    images = numbered(1, 8, 8)
    for seed in range(200):  # two by two cells: one order in 24 would leave the image as it is
        negative = apply_plan(images, sample_plan(sampler, images, 4, 1, generator(seed)))
        assert not torch.equal(negative, images)


def test_same_cell_starts_at_the_top_left_and_takes_the_rest_from_the_base_image():
    images = numbered(4, 10, 11)
    plan = sample_plan("same_cell", images, 4, 3, generator(0))
    for negative, base, sources in zip(apply_plan(images, plan), plan.border_image, plan.source_image, strict=True):
        expected = images[base].clone()
        for cell, source in enumerate(sources):
            row, column = 4 * (cell // 2), 4 * (cell % 2)
            expected[:, row : row + 4, column : column + 4] = images[source, :, row : row + 4, column : column + 4]
        assert torch.equal(negative, expected)


def test_pool_mirrors_its_own_patches_into_the_border():
    images = numbered(10, 10, 11)
    negative = apply_plan(images, sample_plan("pool", images, 4, 1, generator(3)))[0, 0]
    assert torch.equal(negative[0], negative[1])  # one pixel above the grid, edge included
    assert torch.equal(negative[9], negative[8])
    assert torch.equal(negative[:, 0], negative[:, 1])
    assert torch.equal(negative[:, 9], negative[:, 8])
    assert torch.equal(negative[:, 10], negative[:, 7])  # the odd pixel of a border of three goes right


@given(batches, seeds)
@settings(max_examples=20, deadline=None)
def test_within_image_shuffles_each_image_on_its_own(batch, seed):
    images = numbered(batch, 12, 12)
    negatives = apply_plan(images, sample_plan("within_image", images, 4, 1, generator(seed)))
    assert negatives.shape == images.shape
    for image, negative in zip(images, negatives, strict=True):
        assert torch.equal(image.flatten().sort().values, negative.flatten().sort().values)


@pytest.mark.parametrize(("batch", "expected"), [(1, 1), (2, 1), (9, 1), (10, 1), (11, 2), (100, 10), (101, 11)])
def test_one_negative_for_ten_images(batch, expected):
    drawn = PandaDebiaser(Panda(beta=0.5), patch_size=4, seed=0).draw(torch.rand(batch, 3, 8, 8))
    assert drawn.images.shape[0] == expected


def test_without_averaging_every_image_has_a_negative_of_its_own_draw():
    drawn = PandaDebiaser(Panda(beta=0.5, average=False, ratio=0.5), patch_size=4, seed=0).draw(torch.rand(40, 3, 8, 8))
    assert drawn.assignment.shape == (40,)
    assert set(drawn.assignment.tolist()) <= set(range(20))
    assert len(drawn.assignment.unique()) > 5


def test_dtype_is_kept():
    images = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
    assert apply_plan(images, sample_plan("pool", images, 4, 1, generator(0))).dtype == torch.uint8


def test_an_image_smaller_than_a_patch_names_both_sizes():
    with pytest.raises(InvalidInputError, match=r"16x20 px .* 32x32 px.*at most 16"):
        sample_plan("pool", torch.rand(2, 3, 16, 20), 32, 1, generator(0))


def test_bad_requests_say_what_is_wrong():
    images = torch.rand(2, 3, 8, 8)
    with pytest.raises(UnknownNameError, match="'same_cell'"):
        sample_plan("same-cell", images, 4, 1, generator(0))
    with pytest.raises(InvalidInputError, match="positive"):
        sample_plan("pool", images, 0, 1, generator(0))
