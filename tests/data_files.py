"""Small data sets in the published formats, for tests; and where tests find real images, if there are any.

A few tests read real images from the folder that the environment variable TTA_PANDA_TEST_DATA names; its default is
`shared/data` beside the repository. It may hold `cifar-10-batches-py/test_batch`, as published, and photographs in
`photos/<class>/*.jpg`. Tests whose images are missing are skipped.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tta_panda.data.corruptions import CORRUPTIONS

REAL_DATA = Path(os.environ.get("TTA_PANDA_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))


def real_data(name: str) -> Path:
    path = REAL_DATA / name
    if not path.exists():
        pytest.skip(f"no real images at {path}; set TTA_PANDA_TEST_DATA to a folder that holds {name}")
    return path


def random_images(count: int, height: int = 32, width: int = 32, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def write_clean_cifar(root: Path, classes: int = 10, count: int = 20) -> tuple[NDArray[np.uint8], list[int]]:
    """The official pickle with `count` random images."""
    images, labels = random_images(count), [index % classes for index in range(count)]
    folder, file, key = {
        10: ("cifar-10-batches-py", "test_batch", b"labels"),
        100: ("cifar-100-python", "test", b"fine_labels"),
    }[classes]
    (root / folder).mkdir(parents=True)
    content = {b"data": images.transpose(0, 3, 1, 2).reshape(count, 3072), key: labels, b"batch_label": b"testing"}
    (root / folder / file).write_bytes(pickle.dumps(content, protocol=3))
    return images, labels


def write_cifar_c(root: Path, name: str = "CIFAR-10-C", rows: int = 20) -> Path:
    """The published layout with `rows` images per severity; every image is filled with its severity."""
    folder = root / name
    folder.mkdir(parents=True)
    images = np.repeat(np.arange(1, 6, dtype=np.uint8), rows)[:, None, None, None] * np.ones((1, 32, 32, 3), np.uint8)
    for corruption in CORRUPTIONS:
        np.save(folder / f"{corruption}.npy", images)
    np.save(folder / "labels.npy", np.tile(np.arange(rows) % 10, 5).astype(np.uint8))
    return folder


def write_image(path: Path, height: int = 16, width: int = 16, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random_images(1, height, width, seed)[0]).save(path)
    return path
