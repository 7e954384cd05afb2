"""Corrupt every image of a folder into a tree `<corruption>/<severity>/...`, by several processes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tta_panda.data.corruptions import corrupt, expand_corruptions, image_rng, load_frost_textures
from tta_panda.data.corruptions.frost import FrostTextures
from tta_panda.data.corruptions.severity import PARAMETER_SETS
from tta_panda.data.files import is_image, read_image
from tta_panda.data.workers import worker_pool
from tta_panda.errors import DataError, InvalidInputError, UnknownNameError

_SAVING: dict[str, dict[str, Any]] = {"JPEG": {"quality": 85}, "WEBP": {"lossless": True}}
"""How to save formats with a loss, or with a choice; the quality is that of ImageNet-C."""


@dataclass(frozen=True)
class Job:
    """What is done to every image."""

    source: Path
    target: Path
    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    seed: int = 0
    parameters: str | None = None
    textures: FrostTextures | None = None


class Broken(NamedTuple):
    """An image that was skipped, and why."""

    image: str
    error: str


def corrupt_folder(
    source: Path,
    target: Path,
    corruptions: Sequence[str],
    severities: Sequence[int],
    *,
    seed: int = 0,
    parameters: str | None = None,
    frost: Path | None = None,
    workers: int = 1,
    advance: Callable[[float], None] = lambda _share: None,
) -> tuple[int, list[Broken]]:
    """How many images were corrupted, and those that could not be. What an image becomes depends on its path only."""
    names = expand_corruptions(corruptions, severities)
    # What is the same for all images is verified here: once, and not by workers, which could only die of it.
    if parameters is not None and parameters not in PARAMETER_SETS:
        raise UnknownNameError("parameter set", parameters, PARAMETER_SETS)
    textures = load_frost_textures(frost) if frost else None
    job = Job(source, target, names, tuple(dict.fromkeys(severities)), seed, parameters, textures)
    images = _images(source, target)
    broken = []
    try:
        with worker_pool(workers, _prepare, (job,)) as pool_map:
            for image, error in zip(images, pool_map(_corrupt_file, images), strict=True):
                if error is not None:
                    broken.append(Broken(image, error))
                advance(1 / len(images))
    except OSError as error:
        raise DataError(f"Cannot write to {target} ({error.strerror or error}). Choose another OUT.") from error
    return len(images) - len(broken), broken


def _images(source: Path, target: Path) -> list[str]:
    """Paths relative to `source`, written the same on every system, without what an earlier run made."""
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


_job: Job | None = None  # of a worker process, sent once and not with every image


def _prepare(job: Job) -> None:
    global _job
    _job = job


def _corrupt_file(relative: str) -> str | None:
    """Write all corruptions of one image; what went wrong, if anything did."""
    if _job is None:
        raise RuntimeError("The worker was not prepared.")
    try:
        image = read_image(_job.source / relative)
        for name in _job.corruptions:
            for severity in _job.severities:
                # Each path has its own random numbers, so that adding images changes nothing for the others.
                rng = image_rng(_job.seed, name, severity, zlib.crc32(relative.encode()))
                made = corrupt(image, name, severity, rng=rng, parameters=_job.parameters, frost_textures=_job.textures)
                save_image(_job.target / name / str(severity) / relative, made)
    except (DataError, InvalidInputError) as error:
        return str(error)
    return None


def save_image(path: Path, image: NDArray[np.uint8]) -> None:
    """In the format of the name, without loss where there is a choice; all of the file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    kind = Image.registered_extensions()[path.suffix.lower()]
    Image.fromarray(image).save(part, kind, **_SAVING.get(kind, {}))
    os.replace(part, path)
