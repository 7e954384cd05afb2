"""Corrupt every image of a folder into a tree `<corruption>/<severity>/...`, with several processes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from tta_panda.atomic import atomic_path
from tta_panda.data.corruptions import corrupt, expand_corruptions, image_rng
from tta_panda.data.corruptions.frost import FrostTextures, load_frost_textures
from tta_panda.data.corruptions.severity import PARAMETER_SETS
from tta_panda.data.read.files import is_image, read_image
from tta_panda.errors import DataError, InvalidInputError, UnknownNameError
from tta_panda.workers import worker_pool

_SAVING: dict[str, dict[str, Any]] = {".jpg": {"quality": 85}, ".jpeg": {"quality": 85}, ".webp": {"lossless": True}}


def corrupt_folder(
    source: Path,
    target: Path,
    corruptions: Sequence[str],
    severities: Sequence[int],
    *,
    seed: int = 0,
    parameters: str | None = None,
    frost: Path | None = None,
    workers: int | None = 1,
    advance: Callable[[float], None] = lambda _share: None,
) -> tuple[int, dict[str, str]]:
    """Corrupt every image below `source`. The result for an image depends on `seed` and its path only.

    Returns the number of corrupted images, and those that could not be, each with the reason.
    """
    names = expand_corruptions(corruptions, severities)
    # Checked here once, not for every image.
    if parameters is not None and parameters not in PARAMETER_SETS:
        raise UnknownNameError("parameter set", parameters, PARAMETER_SETS)
    textures = load_frost_textures(frost) if frost else None
    job = _Job(source, target, names, tuple(dict.fromkeys(severities)), seed, parameters, textures)
    images = _images(source, target)
    skipped = {}
    try:
        with worker_pool(workers, job) as pool_map:
            for image, error in zip(images, pool_map(_corrupt_file, images), strict=True):
                if error is not None:
                    skipped[image] = error
                advance(1 / len(images))
    except OSError as error:
        raise DataError(f"Cannot write to {target} ({error.strerror or error}). Choose another OUT.") from error
    return len(images) - len(skipped), skipped


def _images(source: Path, target: Path) -> list[str]:
    """Paths relative to `source`, with / on every system, without those that an earlier run made."""
    if not source.is_dir():
        raise DataError(
            f"There is no folder {source}. Expected: tta-panda corrupt IN OUT, with a folder of images as IN."
        )
    if source.resolve() == target.resolve():
        raise InvalidInputError(f"IN and OUT are the same folder, {source}; choose another OUT.")
    made = target.resolve()
    found = sorted(
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if is_image(path) and made not in path.resolve().parents
    )
    if not found:
        raise DataError(f"{source} holds no images (.jpg, .png, ...), nor do the folders in it.")
    return found


class _Job(NamedTuple):
    """What is done to every image."""

    source: Path
    target: Path
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    seed: int
    parameters: str | None
    textures: FrostTextures | None


def _corrupt_file(job: _Job, relative: str) -> str | None:
    """Write all corruptions of one image; returns the message of an error, if there was one."""
    try:
        image = read_image(job.source / relative)
        for name in job.corruptions:
            for severity in job.severities:
                # Each path has its own random numbers, so adding images does not change the others.
                rng = image_rng(job.seed, name, severity, zlib.crc32(relative.encode()))
                made = corrupt(image, name, severity, rng=rng, parameters=job.parameters, frost_textures=job.textures)
                save_image(job.target / name / str(severity) / relative, Image.fromarray(made))
    except (DataError, InvalidInputError) as error:
        return str(error)
    return None


def save_image(path: Path, image: Image.Image) -> None:
    """Save an image in the format of its suffix: JPEG with the quality of ImageNet-C, others without loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as part:
        image.save(part, **_SAVING.get(path.suffix.lower(), {}))
