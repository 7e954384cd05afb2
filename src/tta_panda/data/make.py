"""Make corrupted data, as CIFAR-C in the published layout or as image files.

    OUT/CIFAR-10-C/<corruption>.npy    `make_corrupted`: one file per corruption, with the rows of five severities
    OUT/<corruption>/<severity>/...    `corrupt_folder`: every image of a folder, under its own name

A note next to each corruption, such as `fog.json`, records its settings; data made with other settings are never
extended. Data that an earlier call made with the same settings are kept.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray
from PIL import Image

from tta_panda import __version__
from tta_panda.data import CLEAN, DATASETS
from tta_panda.data.cifar import LABELS, SEVERITIES, Cifar, note_path, open_array, read_note
from tta_panda.data.corruptions import CORRUPTIONS, corrupt, expand_corruptions
from tta_panda.data.corruptions.frost import load_frost_textures
from tta_panda.data.corruptions.severity import PARAMETER_SETS
from tta_panda.data.listing import CLASS_LIST, Found, find_images
from tta_panda.errors import (
    BrokenImageError,
    DataError,
    InvalidInputError,
    StoreError,
    TtaPandaWarning,
    UnknownNameError,
)
from tta_panda.escapes import path_text
from tta_panda.executors import local_executor
from tta_panda.files import locked, read_regular, remove_parts, save_file, saving
from tta_panda.images import read_image

_JPEG = {"quality": 85}
_SAVING: dict[str, dict[str, Any]] = {".jpg": _JPEG, ".jpeg": _JPEG, ".jfif": _JPEG, ".webp": {"lossless": True}}


def _settings(seed: int, parameters: str | None, frost: Path | None) -> dict[str, Any]:
    """Return the keyword arguments of `corrupt` that are common to all images."""
    if parameters is not None and parameters not in PARAMETER_SETS:
        raise UnknownNameError("parameter set", parameters, PARAMETER_SETS)
    return {"seed": seed, "parameters": parameters, "frost_textures": load_frost_textures(frost) if frost else None}


def _noted(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that distinguish versions of a corruption from each other."""
    photographs = settings["frost_textures"]
    textures = {"textures": photographs.name if photographs else "generated"} if name == "frost" else {}
    return {"seed": settings["seed"], **textures}


def _check_settings(path: Path, note: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise `DataError` if data were made with other settings, according to the note next to them."""
    for key, value in settings.items():
        if note.get(key) != value:
            raise DataError(
                f"{path} was made with {key} {note.get(key)!r}, not {value!r}. Choose another output folder, or delete "
                "it to make it again."
            )


# CIFAR-C


def make_corrupted(
    name: str,
    clean_root: Path,
    root: Path,
    corruptions: Sequence[str],
    severities: Sequence[int],
    *,
    seed: int = 0,
    workers: int | None = 1,
    frost: Path | None = None,
    advance: Callable[[float], None] = lambda _share: None,
) -> list[dict[str, Any]]:
    """Make the corruptions and severities of `cifar10-c` or `cifar100-c` that are missing in `root`.

    `advance` is called with the share of the work that was just done. Returns a row per file: the severities `made`
    now, and all that it `holds`.
    """
    source = _cifar_source(name)
    names = expand_corruptions(corruptions, severities)
    settings = _settings(seed, "cifar", frost)
    clean = source.load_clean(clean_root)
    folder = root / source.folder
    executor = local_executor(workers)
    with locked(folder):
        remove_parts(folder)
        _write_labels(folder / LABELS, clean.labels)
        rows, tasks = [], []
        for name in names:
            path = folder / f"{name}.npy"
            there = _severities_in(path, SEVERITIES * len(clean), _noted(name, settings))
            missing = sorted(set(severities) - set(there))
            holds = sorted({*there, *missing})
            rows.append({"file": str(path), "made": missing, "holds": holds})
            if missing:
                tasks.append((path, holds))
        with contextlib.closing(executor.map(partial(_make_file, clean.images, settings), tasks)) as made:
            for _ in made:
                advance(1 / len(tasks))
    return rows


def _make_file(clean: NDArray[np.uint8], settings: Mapping[str, Any], task: tuple[Path, list[int]]) -> None:
    """Write the whole file of a corruption; the rows of other severities are zero.

    The note never lists a severity that the file lacks: it is empty until the file has been written. After a crash in
    between, the file is made again.
    """
    path, severities = task
    note = {**_noted(path.stem, settings), "made_by": f"tta-panda {__version__}"}
    if not path.exists():
        _write_note(path, {"severities": [], **note})
    with saving(path) as part, part.open("wb") as file:
        # Not a memory map: if the disk is full, writing to one kills the process without an error message.
        shape = (SEVERITIES * len(clean), *clean.shape[1:])
        write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for severity in range(1, SEVERITIES + 1):
            if severity not in severities:
                file.seek(clean.nbytes, os.SEEK_CUR)  # sparse on most file systems
                continue
            file.write(corrupt(clean, path.stem, severity, **settings).tobytes())
        file.truncate()
    _write_note(path, {"severities": severities, **note})


def _write_note(path: Path, note: dict[str, Any]) -> None:
    save_file(note_path(path), json.dumps(note, indent=1) + "\n")


def _severities_in(path: Path, rows: int, settings: dict[str, Any]) -> list[int]:
    """Read which severities a file contains: all, if it is a published file, which has no note."""
    if not path.is_file():
        return []
    expected, found = (rows, 32, 32, 3), open_array(path).shape
    if found != expected:
        raise DataError(f"{path} should have the shape {expected}, found {found}. Delete it to make it again.")
    note = read_note(path)
    if note is None:
        return list(range(1, SEVERITIES + 1))
    _check_settings(path, note, settings)
    return list(note["severities"])


def _cifar_source(name: str) -> Cifar:
    found = {name: DATASETS.get(name) for name in DATASETS}
    cifar = {name: source for name, source in found.items() if isinstance(source, Cifar)}
    sources = {name: source for name, source in cifar.items() if CORRUPTIONS[0] in source.domains}
    if name not in sources:
        raise UnknownNameError("data set to make", name, sources)
    return sources[name]


def _write_labels(path: Path, labels: NDArray[Any]) -> None:
    """Write the labels as published: those of the test set repeated five times, one byte each."""
    expected = np.tile(labels, SEVERITIES).astype(np.uint8)
    if not path.is_file():
        with saving(path) as part:
            np.save(part, expected)
    elif not np.array_equal(open_array(path), expected):
        raise DataError(f"{path} does not match the labels of the clean images. Choose another folder with -o PATH.")


# Image files


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

    With `clean`, the images are also copied, so that `target` is a complete data set. Returns the number of corrupted
    images, and the reason for each image that could not be corrupted.
    """
    names = (*expand_corruptions(corruptions, severities), *([CLEAN] if clean else []))
    settings = _settings(seed, parameters, frost)
    images = _images(source, target)
    skipped = {}
    executor = local_executor(workers)
    with locked(target, "another OUT"):
        remove_parts(target, nested=True)
        for name in names:
            _write_tree_note(source, target, name, settings)
        if (source / CLASS_LIST).is_file():
            save_file(target / CLASS_LIST, read_regular(source / CLASS_LIST))
        work = partial(_corrupt_file, source, target, names, tuple(dict.fromkeys(severities)), settings)
        with contextlib.closing(executor.map(work, images)) as errors:
            for image, error in zip(images, errors, strict=True):
                if error is not None:
                    skipped[path_text(image)] = error
                advance(1 / len(images))
    return len(images) - len(skipped), skipped


def _images(source: Path, target: Path) -> list[str]:
    """Image paths relative to `source`, with forward slashes, without images made by an earlier run."""
    if not source.is_dir():
        raise DataError(
            f"There is no folder {source}. Expected: tta-panda corrupt IN OUT, with a folder of images as IN."
        )
    made, found = os.path.realpath(target), find_images([source])
    if os.path.realpath(source) == made:
        raise InvalidInputError(f"IN and OUT are the same folder, {source}; choose another OUT.")

    def is_input(path: Path) -> bool:
        return path != source / CLASS_LIST and not Path(os.path.realpath(path)).is_relative_to(made)

    skipped = {path: reason for path, reason in found.skipped.items() if is_input(path)}
    found = Found(tuple(filter(is_input, found.paths)), skipped)
    if not found.paths:
        raise DataError(f"{source} holds no images (.jpg, .png, ...), nor do the folders in it: {found}.")
    if skipped:
        warnings.warn(f"{path_text(source)}: {found}", TtaPandaWarning, stacklevel=3)
    return sorted(path.relative_to(source).as_posix() for path in found.paths)


def _write_tree_note(source: Path, target: Path, name: str, settings: Mapping[str, Any]) -> None:
    """Record the settings next to a corruption's folder; raise `DataError` if it was made with other settings."""
    made = {} if name == CLEAN else {**_noted(name, settings), "parameters": settings["parameters"]}
    wanted = {"images": path_text(os.path.realpath(source)), **made}
    folder, note = target / name, target / f"{name}.json"
    if folder.exists() and not note.is_file():
        raise DataError(f"{folder} was not made by tta-panda corrupt. Choose another OUT.")
    if note.is_file():
        try:
            before = dict(json.loads(read_regular(note)))
        except (ValueError, TypeError):
            before = {}
        _check_settings(target if name == CLEAN else folder, before, wanted)
    save_file(note, json.dumps(wanted))


def _corrupt_file(
    source: Path,
    target: Path,
    names: Sequence[str],
    severities: Sequence[int],
    settings: Mapping[str, Any],
    relative: str,
) -> str | None:
    """Write the missing corruptions of one image; return the message of an error, if there was one.

    Results get the modification time of the image, and are made again when the two differ: an image may also be
    replaced by an older one.
    """
    try:
        changed = os.stat(source / relative).st_mtime_ns  # before it is read
        missing = [
            (name, severity, path)
            for name, severity, path in _outputs(target, names, severities, relative)
            if not path.is_file() or path.stat().st_mtime_ns != changed
        ]
        if not missing:
            return None
        content, image = read_regular(source / relative), read_image(source / relative)
        index = zlib.crc32(os.fsencode(relative))  # each path has random numbers of its own: images can be added
        for name, severity, path in missing:
            with saving(path) as part:
                if name == CLEAN:
                    part.write_bytes(content)
                else:
                    made = corrupt(image, name, severity, first_index=index, **settings)
                    Image.fromarray(made).save(part, **_SAVING.get(part.suffix.lower(), {}))
                os.utime(part, ns=(changed, changed))
    except BrokenImageError as error:
        return error.reason
    except (DataError, InvalidInputError) as error:
        return str(error)
    except StoreError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENAMETOOLONG:
            return str(error.__cause__.strerror)
        raise
    except OSError as error:  # for example because the image has vanished
        return str(error.strerror)
    return None


def _outputs(
    target: Path, names: Sequence[str], severities: Sequence[int], relative: str
) -> Iterator[tuple[str, int, Path]]:
    """Yield corruption, severity and path of everything made from an image; the clean copy comes last."""
    # GIF has only 256 colours.
    file = f"{relative}.png" if relative.lower().endswith(".gif") else relative
    for name in names:
        if name == CLEAN:
            yield name, 0, target / relative
        else:
            yield from ((name, severity, target / name / str(severity) / file) for severity in severities)
