"""Data in Python: data sets as sequences, corruptions of images of any kind, and lists of names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_files import random_images, write_image
from PIL import Image

import tta_panda
from tta_panda.data.corruptions import corrupt
from tta_panda.data.dataset import ImageDataset
from tta_panda.errors import InvalidInputError, UnknownNameError


def test_data_sets_are_sequences_of_pictures_with_labels(tmp_path: Path) -> None:
    images = random_images(3)
    for index, image in enumerate(images):
        (tmp_path / f"class{index}").mkdir()
        Image.fromarray(image).save(tmp_path / f"class{index}" / "a.png")
    write_image(tmp_path / "class2" / "b.png", 20, 40)
    arrays = ImageDataset(images, np.arange(3), ("class0", "class1", "class2"))
    files = tta_panda.load_data("folder", root=tmp_path)
    glyphs = tta_panda.load_data("glyphs-c", "fog", limit=3)
    assert (len(arrays), len(files), len(glyphs)) == (3, 4, 3)
    for dataset in (arrays, files):
        for index, (picture, label) in zip(range(3), dataset, strict=False):
            assert np.array_equal(np.asarray(picture), images[index]) and label == index
            assert type(label) is int
            assert dataset[index] == (picture, label)
    assert files[-1][0].size == (40, 20) and files[-1][1] == 2
    assert [label for _, label in glyphs] == [0, 1, 2]
    assert glyphs[1][0].size == (32, 32)
    for dataset in (arrays, files, glyphs):
        with pytest.raises(IndexError):
            dataset[len(dataset)]


def as_array(images: Any) -> np.ndarray[Any, Any]:
    if isinstance(images, torch.Tensor):
        pixels = images if images.dtype == torch.uint8 else (255 * images.double()).round().to(torch.uint8)
        return pixels.movedim(-3, -1).numpy()
    return np.asarray(images)


@pytest.mark.parametrize("name", ["fog", "frost"])
def test_corrupted_images_are_of_the_kind_that_was_given(name: str) -> None:
    images = random_images(2, 40, 50)
    expected = corrupt(images, name, 3, seed=7)
    tensor = torch.from_numpy(images).movedim(-1, -3)
    floats = tensor / 255
    for batch in (images, tensor, floats, floats.double(), floats.half()):
        made = tta_panda.corrupt(batch, name, severity=3, seed=7)
        assert type(made) is type(batch) and made.shape == batch.shape and made.dtype == batch.dtype
        assert np.array_equal(as_array(made), expected) or batch.dtype == torch.float16
        one = tta_panda.corrupt(batch[0], name, severity=3, seed=7)
        assert np.array_equal(as_array(one), as_array(made[0])) or batch.dtype == torch.float16
    pictures = [Image.fromarray(image) for image in images]
    made = tta_panda.corrupt(pictures, name, severity=3, seed=7)
    assert all(isinstance(picture, Image.Image) for picture in made)
    assert np.array_equal(np.stack([np.asarray(picture) for picture in made]), expected)
    assert np.array_equal(np.asarray(tta_panda.corrupt(pictures[0], name, 3, seed=7)), expected[0])
    assert isinstance(tta_panda.corrupt((images[0], pictures[1]), name), tuple)
    assert np.array_equal(images, random_images(2, 40, 50))
    assert tta_panda.corrupt([], name) == []


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ("photo.jpg", "got str"),
        (None, "got NoneType"),
        ([None], "got NoneType"),
        (torch.zeros(3, 4, 32, 32), r"got the shape \(3, 4, 32, 32\)"),
        (torch.zeros(32, 32), "got the shape"),
        (torch.full((3, 32, 32), 1.5), r"in \[0, 1\]"),
        (torch.full((3, 32, 32), float("nan")), r"in \[0, 1\]"),
        (torch.zeros(3, 32, 32, dtype=torch.int64), "uint8"),
        (np.zeros((32, 32, 3)), "uint8"),
        (np.zeros((4, 4, 3), np.uint8), "at least 8 x 8"),
    ],
)
def test_what_cannot_be_corrupted_is_explained(images: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        tta_panda.corrupt(images, "fog")
    with pytest.raises(UnknownNameError, match="Did you mean 'fog'"):
        tta_panda.corrupt(random_images(1), "fogg")


def test_names_can_be_listed() -> None:
    assert len(tta_panda.list_corruptions()) == 19
    assert tta_panda.list_corruptions("*_noise") == ["gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"]
    assert tta_panda.list_orders() == [
        "continual", "recurring", "gradual", "mixed",
        "shuffled", "sequential", "correlated", "imbalanced", "label_shift", "few_classes",
    ]  # fmt: skip
    for order in tta_panda.list_orders():
        tta_panda.Stream({"": ImageDataset(random_images(2), np.arange(2), ("a", "b"))}, 2, order=order)
    assert tta_panda.list_presets("cifar10-c*") == ["cifar10-c", "cifar10-c-cpu", "cifar10-c-mint"]
