"""The corruptions against PyPI's `imagecorruptions`, for development: skipped where it is not installed.

It knows the strengths of ImageNet-C only, so images are 224 px. Its elastic transform is another one than the published
one and is left out. It was written for older libraries; three names that these have lost since are given back to it.
Its dependencies would replace OpenCV by another build, so it is no extra: pip install --no-deps imagecorruptions.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray
from test_corruptions import scenes

from tta_panda.data.corruptions import corrupt
from tta_panda.data.corruptions.frost import FrostTextures, load_frost_textures

Bytes = NDArray[np.uint8]
Reference = Callable[[Bytes, str, int], Bytes]

WITHOUT_CHANCE = (
    "brightness", "contrast", "defocus_blur", "gaussian_blur", "jpeg_compression", "pixelate", "saturate", "zoom_blur",
)  # fmt: skip
WITH_CHANCE = (
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "motion_blur", "snow", "frost", "fog", "spatter",
)  # fmt: skip


@pytest.fixture(scope="module")
def package() -> Path:
    spec = importlib.util.find_spec("imagecorruptions")
    if spec is None or spec.origin is None:
        pytest.skip(
            "imagecorruptions is not installed; pip install scikit-image; pip install --no-deps imagecorruptions"
        )
    return Path(spec.origin).parent


@pytest.fixture
def reference(package: Path, monkeypatch: pytest.MonkeyPatch) -> Reference:
    resources = types.ModuleType("pkg_resources")
    resources.__dict__["resource_filename"] = lambda _package, name: str(package / name)
    monkeypatch.setitem(sys.modules, "pkg_resources", resources)
    monkeypatch.setattr(np, "float_", np.float64, raising=False)
    module: Any = pytest.importorskip("imagecorruptions.corruptions")
    gaussian: Any = pytest.importorskip("skimage.filters").gaussian

    def smooth(image: Any, sigma: float, multichannel: bool = False, **options: Any) -> Any:
        return gaussian(image, sigma, channel_axis=-1 if multichannel else None, **options)

    monkeypatch.setattr(module, "gaussian", smooth)
    published: Any = pytest.importorskip("imagecorruptions").corrupt
    return lambda image, name, severity: np.asarray(published(image, severity, name))


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", WITHOUT_CHANCE)
def test_deterministic_ones_agree_in_every_byte(reference: Reference, name: str, severity: int) -> None:
    image = scenes(1, 224, seed=severity)[0]
    ours = corrupt(image, name, severity)
    assert np.array_equal(ours, reference(image, name, severity))


def damage(images: Bytes, corrupted: list[Bytes]) -> NDArray[np.float64]:
    """Mean and spread of the change, and how much of the change is between neighbouring pixels, over all images."""
    change = np.stack(corrupted).astype(float) - images
    return np.array([change.mean(), change.std(), np.diff(change, axis=2).std()])


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize("name", WITH_CHANCE)
def test_random_ones_agree_in_distribution(
    reference: Reference, package: Path, name: str, severity: int, tmp_path: Path
) -> None:
    images = scenes(64 if name == "frost" else 16, 224, seed=11)  # photographs of frost differ a lot
    textures = published_frost(package, tmp_path) if name == "frost" else None
    ours = list(corrupt(images, name, severity, seed=1, frost_textures=textures))
    np.random.seed(1)
    theirs = [reference(image, name, severity) for image in images]
    found, expected = damage(images, ours), damage(images, theirs)
    # Means may differ by one for rounding, and by chance in proportion to the damage.
    assert abs(found[0] - expected[0]) < 1 + 0.15 * expected[1]
    assert found[1:] == pytest.approx(expected[1:], rel=0.15, abs=0.5)


def published_frost(package: Path, folder: Path) -> FrostTextures:
    """The photographs of the package, enlarged by a tenth as it does; it never draws the sixth."""
    for path in sorted((package / "frost").glob("frost[1-5].*")):
        photo = cv2.imread(str(path))
        assert photo is not None
        larger = cv2.resize(photo, (0, 0), fx=1.1, fy=1.1, interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{path.stem}.png"), larger)
    return load_frost_textures(folder)


def test_glass_blur_agrees_in_distribution(reference: Reference) -> None:
    images = scenes(1, 224, seed=5)
    ours = [corrupt(images[0], "glass_blur", 3)]
    np.random.seed(0)
    theirs = [reference(images[0], "glass_blur", 3)]
    assert damage(images, ours) == pytest.approx(damage(images, theirs), rel=0.05, abs=0.6)
