"""Embedded symbols, streams, and CIFAR-C in its published layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tta_panda import Stream, load_data
from tta_panda.data import DATASETS
from tta_panda.data.dataset import ImageDataset
from tta_panda.data.glyphs import draw_glyphs, render, scenes
from tta_panda.data.glyphs.symbols import BENCHMARK_CLASSES, VALIDATION_CLASSES, masks, symbol_name, symbols
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
        render.place_symbol(canvas, "heart", rng, scale=0.9, centre=np.zeros(2))
        assert np.ptp(canvas @ luma) > 0.24


def test_benchmark_and_validation_share_neither_classes_nor_pictures():
    benchmark, validation = load_data("glyphs-c", limit=20), load_data("glyphs-val-c", limit=20)
    assert not set(benchmark.class_names) & set(validation.class_names)
    assert not any(np.array_equal(a, b) for a in benchmark.images for b in validation.images)


def test_corrupted_glyphs_keep_labels_and_balance():
    clean, noisy = load_data("glyphs-c"), load_data("glyphs-c", "gaussian_noise", 5)
    assert np.array_equal(clean.labels, noisy.labels)
    assert (np.bincount(clean.labels) == 100).all()
    difference = noisy.images.astype(float) - clean.images
    inside = (clean.images > 80) & (clean.images < 175)
    assert difference[inside].std() == pytest.approx(0.10 * 255, rel=0.03)


def test_training_pictures_cover_more_than_symbols():
    rng = np.random.default_rng(0)
    examples = [scenes.draw_captioned(rng) for _ in range(300)]
    concepts = {example.concept[0] for example in examples}
    assert {"collage", "close-up"} <= concepts
    assert any(concept.endswith("pattern") for concept in concepts)
    assert any(len(example.concept) == 2 for example in examples)
    for example in examples:
        assert example.picture.shape == (32, 32, 3)
        assert example.picture.dtype == np.float32
        assert 0 <= example.picture.min() <= example.picture.max() <= 1
        assert all(word in example.caption for word in example.concept)


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


def test_streams_and_data_sets_refuse_nonsense():
    with pytest.raises(InvalidInputError, match="batch_size"):
        Stream(dataset(3), 0, 0)
    with pytest.raises(DataError, match="no image"):
        Stream(dataset(0), 5, 0)
    with pytest.raises(InvalidInputError, match="limit"):
        dataset(3).head(0)
    with pytest.raises(DataError, match="uint8"):
        ImageDataset(np.zeros((2, 4, 4, 3)), np.zeros(2, int), ("a", "b"))
    with pytest.raises(DataError, match="as many labels"):
        ImageDataset(np.zeros((2, 4, 4, 3), np.uint8), np.zeros(3, int), ("a", "b"))
    with pytest.raises(DataError, match=r"0\.\.1"):
        ImageDataset(np.zeros((2, 4, 4, 3), np.uint8), np.array([0, 2]), ("a", "b"))
    with pytest.raises(UnknownNameError, match="glyphs-c"):
        load_data("glyph-c")


@pytest.fixture
def cifar_root(tmp_path):
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    severity = np.repeat(np.arange(1, 6, dtype=np.uint8), 4)
    np.save(folder / "fog.npy", np.broadcast_to(severity[:, None, None, None], (20, 32, 32, 3)))
    np.save(folder / "labels.npy", np.tile(np.arange(4, dtype=np.uint8), 5))
    return tmp_path


def test_cifar_c_is_read_by_severity(cifar_root):
    for root in (cifar_root, cifar_root / "CIFAR-10-C"):
        third = load_data("cifar10-c", "fog", 3, root=root)
        assert len(third) == 4
        assert (third.images == 3).all()
        assert third.labels.tolist() == [0, 1, 2, 3]
        assert third.class_names[:3] == ("airplane", "automobile", "bird")
    assert isinstance(third.images, np.memmap)


def test_cifar_c_that_is_not_as_published_is_explained(cifar_root):
    with pytest.raises(DataError, match="--data-root"):
        load_data("cifar10-c", "fog")
    with pytest.raises(DataError, match=r"CIFAR-100-C\.tar"):
        load_data("cifar100-c", "fog", root=cifar_root / "nowhere")
    with pytest.raises(DataError, match=r"snow\.npy.*fog"):
        load_data("cifar10-c", "snow", root=cifar_root)
    np.save(cifar_root / "CIFAR-10-C" / "snow.npy", np.zeros((7, 32, 32, 3), np.uint8))
    with pytest.raises(DataError, match="7 images and 20 labels"):
        load_data("cifar10-c", "snow", root=cifar_root)
    (cifar_root / "CIFAR-10-C" / "frost.npy").write_bytes(b"half a file")
    with pytest.raises(DataError, match=r"frost\.npy is not a readable"):
        load_data("cifar10-c", "frost", root=cifar_root)


def test_every_data_set_says_what_it_is():
    assert all(DATASETS.get(name).__doc__ for name in DATASETS)
