"""Embedded symbols, streams, and the registry of data sets."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from tta_panda import Stream, load_data
from tta_panda.data import DATASETS, list_data
from tta_panda.data.dataset import ImageDataset
from tta_panda.data.glyphs import (
    BENCHMARK_CLASSES,
    VALIDATION_CLASSES,
    draw_glyphs,
    masks,
    place_symbol,
    symbol_name,
    symbols,
)
from tta_panda.errors import DataError, InvalidInputError, UnknownNameError


@pytest.mark.parametrize(
    ("character", "name"),
    [
        ("★", "star"),
        ("☆", "star"),
        ("♞", "chess knight"),
        ("❤", "heart"),
        ("☠", "skull and crossbones"),
        ("✈", "airplane"),
    ],
)
def test_unicode_names_become_words(character, name):
    assert symbol_name(character) == name
    assert character in symbols()[name]


def test_masks_fill_their_square_but_for_the_fonts_bearings():
    for name in BENCHMARK_CLASSES:
        for mask in masks(name):
            rows, columns = (mask > 64).any(axis=1).sum(), (mask > 64).any(axis=0).sum()
            assert max(rows, columns) > 0.8 * len(mask)


def test_glyphs_are_drawn_the_same_every_time_and_read_only():
    draw_glyphs.cache_clear()
    first = draw_glyphs(VALIDATION_CLASSES, 3, seed=5)
    draw_glyphs.cache_clear()
    second = draw_glyphs(VALIDATION_CLASSES, 3, seed=5)
    assert np.array_equal(first.images, second.images)
    assert first.images.shape == (30, 32, 32, 3)
    assert not np.array_equal(first.images, draw_glyphs(VALIDATION_CLASSES, 3, seed=6).images)
    with pytest.raises(ValueError, match="read-only"):
        first.images[0] = 0


def test_symbols_stand_out_from_their_background():
    rng = np.random.default_rng(0)
    luma = np.array([0.299, 0.587, 0.114])
    for background in np.linspace(0, 1, 11):
        canvas = np.full((32, 32, 3), background, np.float32)
        place_symbol(canvas, "heart", rng, scale=0.9, centre=np.zeros(2))
        assert np.ptp(canvas @ luma) > 0.24


def test_benchmark_and_validation_share_neither_classes_nor_pictures():
    benchmark, validation = load_data("glyphs-c", limit=20), load_data("glyphs-val-c", limit=20)
    assert not set(benchmark.class_names) & set(validation.class_names)
    assert not any(np.array_equal(a, b) for a in benchmark.images for b in validation.images)


def test_a_limit_above_the_usual_number_draws_more_pictures_behind_the_same_ones():
    usual, few, many = (load_data("glyphs-val-c", "contrast", limit=limit) for limit in (None, 7, 1013))
    assert (len(usual), len(few), len(many)) == (1000, 7, 1013)
    assert np.array_equal(many.images[:7], few.images) and np.array_equal(many.labels[:1000], usual.labels)
    assert len(np.unique(many.images.reshape(1013, -1), axis=0)) == 1013
    with pytest.raises(UnknownNameError, match="'fog'"):
        load_data("glyphs-c", "fogg")


def test_corrupted_glyphs_keep_labels_and_balance():
    clean, noisy = load_data("glyphs-c"), load_data("glyphs-c", "gaussian_noise", 5)
    assert np.array_equal(clean.labels, noisy.labels)
    assert (np.bincount(clean.labels) == 100).all()
    difference = noisy.images.astype(float) - clean.images
    inside = (clean.images > 80) & (clean.images < 175)
    assert difference[inside].std() == pytest.approx(0.10 * 255, rel=0.03)


def dataset(count: int, classes: int = 3) -> ImageDataset:
    images = np.arange(count, dtype=np.uint8)[:, None, None, None].repeat(4, 1).repeat(4, 2).repeat(3, 3)
    return ImageDataset(images, np.arange(count) % classes, tuple("abc"[:classes]))


def test_a_stream_passes_every_image_once_in_a_seeded_order():
    def order(seed: int) -> list[int]:
        return [int(image[0, 0, 0]) for images, _ in Stream(dataset(23), 5, seed) for image in images]

    sizes = [len(labels) for _, labels in Stream(dataset(23), 5, 0)]
    assert sizes == [5, 5, 5, 5, 3]
    assert len(Stream(dataset(23), 5, 0)) == 5
    assert sorted(order(0)) == list(range(23))
    assert order(0) == order(0) != order(1)
    for images, labels in Stream(dataset(23), 5, 0):
        assert images.shape[1:] == (3, 4, 4)
        assert images.dtype == torch.uint8
        assert torch.equal(labels, images[:, 0, 0, 0].long() % 3)


def test_a_stream_can_keep_the_order_of_the_data_set():
    images = torch.cat([images for images, _ in Stream(dataset(7), 3, seed=5, order="sequential")])
    assert images[:, 0, 0, 0].tolist() == list(range(7))
    with pytest.raises(UnknownNameError, match=r"Unknown order of a stream 'shufled'\. Did you mean 'shuffled'"):
        Stream(dataset(7), 3, 0, order="shufled")


def test_streams_and_data_sets_refuse_nonsense():
    with pytest.raises(InvalidInputError, match="batch_size"):
        Stream(dataset(3), 0, 0)
    with pytest.raises(DataError, match="no image"):
        Stream(dataset(0), 5, 0)
    with pytest.raises(InvalidInputError, match="limit"):
        dataset(3).head(0)
    with pytest.raises(DataError, match="uint8"):
        ImageDataset(np.zeros((2, 4, 4, 3)), np.zeros(2, int), ("a", "b"))
    with pytest.raises(DataError, match="Expected 2 labels"):
        ImageDataset(np.zeros((2, 4, 4, 3), np.uint8), np.zeros(3, int), ("a", "b"))
    with pytest.raises(DataError, match=r"0\.\.1"):
        ImageDataset(np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 2]), ("a", "b"))
    with pytest.raises(UnknownNameError, match="glyphs-c"):
        load_data("glyph-c")


def test_every_data_set_says_what_it_is():
    for name in list_data():
        source = DATASETS.get(name)
        assert source.name == name
        assert source.about.endswith(".")
        assert source.embedded == name.startswith("glyphs")
        assert source.image_files == (not name.startswith(("cifar", "glyphs")))
    assert list_data("cifar10.*") == ["cifar10.1", "cifar10.2"]


def test_importing_the_registry_is_cheap():
    code = "import sys, tta_panda.data; print(sorted({'torch', 'numpy', 'PIL', 'cv2', 'requests'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
