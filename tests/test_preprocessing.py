"""CLIP's preprocessing: image by image with Pillow, as open_clip does it, and batched, which stays close to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from data_files import random_images, real_data
from numpy.typing import NDArray
from PIL import Image
from records import plan
from test_corruptions import scenes
from torch import Tensor

from tta_panda.data.dataset import ImageDataset
from tta_panda.data.stream import Stream
from tta_panda.errors import InvalidInputError
from tta_panda.evaluation.config import MethodConfig, RunConfig, StreamConfig
from tta_panda.images import fit_picture
from tta_panda.models.prepare import fit_images

Draw = Callable[[int, int, int], NDArray[np.uint8]]

SIZE = 224
SHAPES = [(32, 32), (224, 224), (299, 299), (37, 61), (500, 333), (225, 224), (100, 227), (640, 227)]


def open_clip_pixels(picture: Image.Image, size: int = SIZE) -> Tensor:
    """Floats (3, size, size) from 0 to 1: open_clip's transform up to its normalisation."""
    transform = open_clip.image_transform(size, is_train=False, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    pixels: Tensor = transform(picture)
    return pixels


def batched(image: NDArray[np.uint8], size: int = SIZE) -> Tensor:
    return fit_images(torch.from_numpy(image.copy()).permute(2, 0, 1)[None], size)[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_fitting_with_pillow_is_that_of_open_clip(shape: tuple[int, int], mode: str) -> None:
    picture = Image.fromarray(scenes(1, *shape)[0]).convert(mode)
    ours = np.asarray(fit_picture(picture, SIZE))
    assert np.array_equal(ours, (255 * open_clip_pixels(picture)).round().byte().permute(1, 2, 0).numpy())


def difference(image: NDArray[np.uint8]) -> tuple[float, float]:
    """Largest and mean difference of the batched pixels from open_clip's, in steps of 1/255."""
    gap = 255 * (batched(image) - open_clip_pixels(Image.fromarray(image))).abs()
    return float(gap.max()), float(gap.mean())


@pytest.mark.parametrize(
    ("draw", "shape"),
    # Pillow resizes very tall images in the other direction first, so white noise is clipped at other places there.
    [*((scenes, shape) for shape in SHAPES), *((random_images, shape) for shape in SHAPES if shape != (640, 227))],
)
def test_batched_differs_from_pillow_by_rounding_only(draw: Draw, shape: tuple[int, int]) -> None:
    """Pillow rounds to bytes after each direction; the tensor operation clips there, too, but never rounds."""
    largest, mean = difference(draw(1, *shape)[0])
    assert largest < 1.5
    assert mean < 0.4


def test_batched_stays_close_on_real_images() -> None:
    from tta_panda.data.cifar import CIFAR10

    images = CIFAR10.load_clean(real_data("cifar-10-batches-py").parent).images[:100]
    gaps = np.array([difference(image) for image in images])
    assert gaps[:, 0].max() < 1.5
    assert gaps[:, 1].max() < 0.32


def test_a_stream_that_fits_gives_open_clips_pixels() -> None:
    images = random_images(5)
    dataset = ImageDataset(images, np.arange(5), tuple("abcde"))
    for batch, labels in Stream(dataset, 2, seed=0, fit=64):
        for pixels, label in zip(batch, labels.tolist(), strict=True):
            expected = open_clip_pixels(Image.fromarray(images[label]), 64)
            assert torch.equal(pixels, (255 * expected).round().byte())
            assert torch.equal(fit_images(pixels[None], 64)[0], pixels.float() / 255)  # the model leaves it as it is


def test_preprocessing_is_part_of_the_record() -> None:
    (default,), (exact,) = plan(["clip"]), plan(["clip"], preprocess="exact")
    assert (default.stream.preprocess, exact.stream.preprocess) == ("batched", "exact")
    assert default.key != exact.key
    with pytest.raises(InvalidInputError, match="'batched' or 'exact'"):
        plan(["clip"], preprocess="exakt")


def test_the_image_list_is_part_of_the_record_by_its_content(tmp_path: Path) -> None:
    for name, text in (("a", "x.JPEG\ny.JPEG\n"), ("b", "y\nx\n"), ("c", "x\n")):
        (tmp_path / name).write_text(text)
    keys = [plan(["clip"], data="imagenet-c", image_list=tmp_path / name)[0].key for name in "abc"]
    assert keys[0] == keys[1] != keys[2]


def test_keys_are_the_same_on_every_machine() -> None:
    stream = StreamConfig(model="mini", data="glyphs-c", corruption="fog", severity=5)
    config = RunConfig(stream=stream, method=MethodConfig(name="tent+panda", options={"lr": 0.001}))
    assert config.key == "0e8efd1ebb5d0d3e1193"
