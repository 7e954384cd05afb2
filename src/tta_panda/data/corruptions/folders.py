"""Corrupt every image of a folder into a tree `<corruption>/<severity>/...`, or one into a contact sheet.

A note beside each corruption's folder, `fog.json`, says which images were corrupted with which settings. What an
earlier call with the same settings has made is not made again, unless the image has changed since.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from tta_panda.data import CLEAN
from tta_panda.data.corruptions import corrupt, expand_corruptions, image_rng
from tta_panda.data.corruptions.frost import FrostTextures, load_frost_textures
from tta_panda.data.corruptions.severity import PARAMETER_SETS
from tta_panda.data.folders import CLASS_LIST
from tta_panda.data.listing import Found, find_images
from tta_panda.errors import BrokenImageError, DataError, InvalidInputError, TtaPandaWarning, UnknownNameError
from tta_panda.escapes import path_text
from tta_panda.executors import local_executor
from tta_panda.files import locked, read_regular, remove_parts, save_file, saving
from tta_panda.images import fit_picture, read_image

_JPEG = {"quality": 85}
_SAVING: dict[str, dict[str, Any]] = {".jpg": _JPEG, ".jpeg": _JPEG, ".jfif": _JPEG, ".webp": {"lossless": True}}

_LARGEST = 224  # side of the images that ImageNet-C corrupts
_SMALLEST_TILE = 96
_GAP, _LEFT, _TOP = 4, 130, 26
_PAPER, _INK = (255, 255, 255), (30, 30, 30)


def corrupt_folder(
    source: Path,
    target: Path,
    corruptions: Sequence[str],
    severities: Sequence[int],
    *,
    clean: bool = False,
    seed: int = 0,
    parameters: str | None = None,
    frost: Path | None = None,
    workers: int | None = 1,
    advance: Callable[[float], None] = lambda _share: None,
) -> tuple[int, dict[str, str]]:
    """Corrupt every image below `source`. The result for an image depends on `seed` and its path only.

    With `clean`, the images are also copied, so that `target` is a data set by itself. Returns the number of corrupted
    images, and those that could not be, each with the reason.
    """
    names = (*expand_corruptions(corruptions, severities), *([CLEAN] if clean else []))
    # Checked here once, not for every image.
    if parameters is not None and parameters not in PARAMETER_SETS:
        raise UnknownNameError("parameter set", parameters, PARAMETER_SETS)
    textures = load_frost_textures(frost) if frost else None
    images = _images(source, target)
    job = _Job(source, target, names, tuple(dict.fromkeys(severities)), seed, parameters, textures)
    skipped = {}
    executor = local_executor(workers)
    with locked(target, "another OUT"):
        remove_parts(target, nested=True)
        _write_notes(job)
        if (source / CLASS_LIST).is_file():
            save_file(target / CLASS_LIST, read_regular(source / CLASS_LIST))
        with contextlib.closing(executor.map(functools.partial(_corrupt_file, job), images)) as errors:
            for image, error in zip(images, errors, strict=True):
                if error is not None:
                    skipped[path_text(image)] = error
                advance(1 / len(images))
    return len(images) - len(skipped), skipped


def _images(source: Path, target: Path) -> list[str]:
    """Paths relative to `source`, with / on every system, without those that an earlier run made."""
    if not source.is_dir():
        raise DataError(
            f"There is no folder {source}. Expected: tta-panda corrupt IN OUT, with a folder of images as IN."
        )
    if source.resolve() == target.resolve():
        raise InvalidInputError(f"IN and OUT are the same folder, {source}; choose another OUT.")
    made, found = target.resolve(), find_images([source])
    skipped = {
        path: reason
        for path, reason in found.skipped.items()
        if made not in path.resolve().parents and path != source / CLASS_LIST
    }
    found = Found(tuple(path for path in found.paths if made not in path.resolve().parents), skipped)
    if not found.paths:
        raise DataError(f"{source} holds no images (.jpg, .png, ...), nor do the folders in it: {found}.")
    if skipped:
        warnings.warn(f"{path_text(source)}: {found}", TtaPandaWarning, stacklevel=3)
    return sorted(path.relative_to(source).as_posix() for path in found.paths)


class _Job(NamedTuple):
    """What is done to every image."""

    source: Path
    target: Path
    names: tuple[str, ...]
    severities: tuple[int, ...]
    seed: int
    parameters: str | None
    textures: FrostTextures | None

    def outputs(self, relative: str) -> Iterator[tuple[str, int, Path]]:
        """Corruption, severity and path of everything that is made of an image; clean copies come last."""
        # A GIF has 256 colours only.
        file = f"{relative}.png" if relative.lower().endswith(".gif") else relative
        for name in self.names:
            if name == CLEAN:
                yield name, 0, self.target / relative
            else:
                yield from ((name, severity, self.target / name / str(severity) / file) for severity in self.severities)


def _write_notes(job: _Job) -> None:
    """Say beside each corruption's folder how it is made; it is a `DataError` if it was made otherwise before."""
    for name in job.names:
        settings: dict[str, Any] = {"images": path_text(job.source.resolve())}
        if name != CLEAN:
            settings |= {"seed": job.seed, "parameters": job.parameters}
        if name == "frost":
            settings["textures"] = job.textures.name if job.textures else "generated"
        note, content = job.target / f"{name}.json", json.dumps(settings)
        if name != CLEAN and (job.target / name).exists() and not note.exists():
            raise DataError(f"{job.target / name} was not made by tta-panda corrupt. Choose another OUT.")
        if note.exists() and (before := read_regular(note).decode()) != content:
            raise DataError(
                f"The {name} images in {job.target} were made with other settings: {before}, not {content}. Choose "
                f"another OUT, or delete them and {note.name}."
            )
        save_file(note, content)


def _corrupt_file(job: _Job, relative: str) -> str | None:
    """Write what is missing of one image; returns the message of an error, if there was one."""
    path = job.source / relative
    missing = [output for output in job.outputs(relative) if not _is_up_to_date(output[2], path)]
    if not missing:
        return None
    try:
        image = read_image(path)
        for name, severity, output in missing:
            with _output_of(path, output) as part:
                if name == CLEAN:
                    shutil.copyfile(path, part)
                    continue
                # Each path has its own random numbers, so adding images does not change the others.
                rng = image_rng(job.seed, name, severity, zlib.crc32(os.fsencode(relative)))
                made = corrupt(image, name, severity, rng=rng, parameters=job.parameters, frost_textures=job.textures)
                _save(part, Image.fromarray(made))
    except BrokenImageError as error:
        return error.reason
    except (DataError, InvalidInputError) as error:
        return str(error)
    return None


def _is_up_to_date(output: Path, path: Path) -> bool:
    return output.is_file() and output.stat().st_mtime_ns >= path.stat().st_mtime_ns


@contextlib.contextmanager
def _output_of(path: Path, output: Path) -> Iterator[Path]:
    """Where to write what is made of an image; it is up to date then, even if the image is from the future."""
    with saving(output) as part:
        yield part
        if not _is_up_to_date(part, path):
            os.utime(part, ns=(changed := path.stat().st_mtime_ns, changed))


def save_image(path: Path, image: Image.Image) -> None:
    """Save an image in the format of its suffix: JPEG with the quality of ImageNet-C, others without loss."""
    with saving(path) as part:
        _save(part, image)


def _save(path: Path, image: Image.Image) -> None:
    image.save(path, **_SAVING.get(path.suffix.lower(), {}))


def draw_sheet(
    image: NDArray[np.uint8],
    corruptions: Sequence[str],
    severities: Sequence[int] = (1, 2, 3, 4, 5),
    *,
    seed: int = 0,
    parameters: str | None = None,
    frost: Path | None = None,
) -> Image.Image:
    """The image (H, W, 3) beside its corrupted versions; small images are enlarged without smoothing."""
    how: dict[str, Any] = {"parameters": parameters, "frost_textures": load_frost_textures(frost) if frost else None}
    height, width = image.shape[:2]
    zoom = max(1, -(-_SMALLEST_TILE // min(height, width)))
    step_x, step_y = zoom * width + _GAP, zoom * height + _GAP
    size = (_LEFT + step_x * (1 + len(severities)), _TOP + step_y * len(corruptions))
    sheet = Image.new("RGB", size, _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for column, title in enumerate(("clean", *(f"severity {severity}" for severity in severities))):
        pen.text((_LEFT + column * step_x, 6), title, _INK, font)
    for row, name in enumerate(corruptions):
        top = _TOP + row * step_y
        pen.text((6, top + step_y // 2 - 9), name.replace("_", " "), _INK, font)
        made = [corrupt(image, name, level, rng=image_rng(seed, name, level, 0), **how) for level in severities]
        for column, tile in enumerate([image, *made]):
            enlarged = Image.fromarray(tile).resize((zoom * width, zoom * height), Image.Resampling.NEAREST)
            sheet.paste(enlarged, (_LEFT + column * step_x, top))
    return sheet


def read_for_sheet(path: Path) -> NDArray[np.uint8]:
    """Read an image; a large one is resized and cropped to 224 px, for which the strengths of ImageNet-C are meant."""
    if not path.is_file():
        raise DataError(f"There is no image {path}. Expected: tta-panda corrupt --sheet sheet.png IMAGE")
    image = read_image(path)
    return image if min(image.shape[:2]) <= _LARGEST else np.asarray(fit_picture(Image.fromarray(image), _LARGEST))
