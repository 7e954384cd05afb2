"""Make CIFAR-10-C or CIFAR-100-C from clean images, in the published layout, with several processes.

A note beside each file, `fog.json`, lists the severities whose rows are filled, and never more than the file holds: an
empty note is written before the file, and extended after it. A crash in between costs time, but the note stays true.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray

from tta_panda import __version__
from tta_panda.data import DATASETS
from tta_panda.data.cifar import LABELS, SEVERITIES, Cifar, note_path, open_array, read_note
from tta_panda.data.corruptions import corrupt_batch, expand_corruptions
from tta_panda.data.corruptions.frost import load_frost_textures, textures_name
from tta_panda.errors import DataError, UnknownNameError
from tta_panda.executors import local_executor
from tta_panda.files import locked, remove_parts, save_file, saving

Images = NDArray[np.uint8]

_IMAGES_AT_ONCE = 500  # enough to be worth sending, few enough to show progress


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
    advance: Callable[[str, float], None] = lambda _name, _share: None,
) -> list[dict[str, Any]]:
    """Make those of these corruptions and severities of `cifar10-c` or `cifar100-c` that `root` lacks.

    `advance` is called with a corruption and the share of the work just done. Returns a row per file: the severities
    `made` now, and all that it `holds`.
    """
    source = _makeable(name)
    names = expand_corruptions(corruptions, severities)
    textures = load_frost_textures(frost) if frost else None
    clean = source.load_clean(clean_root)
    folder = root / source.folder
    corrupt = functools.partial(corrupt_batch, seed=seed, parameters="cifar", frost_textures=textures)
    executor = local_executor(workers)
    with locked(folder):
        remove_parts(folder)
        _write_labels(folder / LABELS, clean.labels)
        files = {name: _corruption_file(folder, name, len(clean), seed, frost) for name in names}
        missing = {name: sorted(set(severities) - set(file.severities())) for name, file in files.items()}
        starts = range(0, len(clean), _IMAGES_AT_ONCE)
        tasks = [(name, severity, first) for name in names for severity in missing[name] for first in starts]
        with contextlib.closing(executor.map(functools.partial(_corrupt, clean.images, corrupt), tasks)) as parts:
            for name in filter(missing.get, names):
                own = itertools.islice(parts, len(starts) * len(missing[name]))
                files[name].write(missing[name], own, functools.partial(advance, name, 1 / len(tasks)))
        return [
            {"file": str(file.path), "made": missing[name], "holds": file.severities()} for name, file in files.items()
        ]


def _corrupt(clean: Images, corrupt: Callable[..., Images], task: tuple[str, int, int]) -> tuple[int, int, Images]:
    """A part of a file: severity, index of the first image, images."""
    name, severity, first = task
    return severity, first, corrupt(clean[first : first + _IMAGES_AT_ONCE], name, severity, first_index=first)


def _makeable(name: str) -> Cifar:
    found = {name: DATASETS.get(name) for name in DATASETS}
    sources = {name: source for name, source in found.items() if isinstance(source, Cifar) and source.folder}
    if name not in sources:
        raise UnknownNameError("data set to make", name, sources)
    return sources[name]


def _corruption_file(folder: Path, name: str, rows: int, seed: int, frost: Path | None) -> CorruptionFile:
    settings: dict[str, Any] = {"seed": seed}
    if name == "frost":
        settings["textures"] = textures_name(frost)
    return CorruptionFile(folder / f"{name}.npy", rows, settings)


def _write_labels(path: Path, labels: NDArray[Any]) -> None:
    """Write the labels as published: those of the test set five times, one byte each."""
    expected = np.tile(labels, SEVERITIES).astype(np.uint8)
    if not path.is_file():
        with saving(path) as part:
            np.save(part, expected)
    elif not np.array_equal(open_array(path), expected):
        raise DataError(
            f"{path} belongs to other images than the clean ones given. Choose another folder with -o PATH."
        )


class CorruptionFile:
    """A file that is made severity by severity from `rows` clean images, with settings that must not change."""

    def __init__(self, path: Path, rows: int, settings: dict[str, Any]):
        self.path, self.rows, self.settings = path, rows, settings
        self._shape = (SEVERITIES * rows, 32, 32, 3)

    def severities(self) -> list[int]:
        """Severities that the file holds. A file without a note is a published one and holds all of them."""
        if not self.path.is_file():
            return []
        found = open_array(self.path).shape
        if found != self._shape:
            raise DataError(
                f"{self.path} should have the shape {self._shape}, found {found}. Delete it to make it again."
            )
        note = read_note(self.path)
        if note is None:
            return list(range(1, SEVERITIES + 1))
        for key, value in self.settings.items():
            if note.get(key) != value:
                raise DataError(
                    f"{self.path} was made with {key} {note.get(key)!r}, not {value!r}, and a file holds only one of "
                    "them. Choose another folder with -o PATH, or delete the file to make it again."
                )
        return list(note["severities"])

    def write(
        self, severities: Iterable[int], parts: Iterable[tuple[int, int, Images]], advance: Callable[[], None]
    ) -> None:
        """Add severities, given as parts (severity, index of the first image, images), and keep those it holds."""
        kept = self.severities()
        if not kept:
            self._write_note([])
        with saving(self.path) as part, part.open("wb") as file:
            # Not a memory map: where the disk is full, writing to one ends the process without a word.
            write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": self._shape})
            start = file.tell()
            file.truncate(start + math.prod(self._shape))

            def put(severity: int, index: int, images: Images) -> None:
                file.seek(start + (self.rows * (severity - 1) + index) * math.prod(self._shape[1:]))
                file.write(images.tobytes())

            for severity in kept:
                first = self.rows * (severity - 1)
                put(severity, 0, open_array(self.path)[first : first + self.rows])
            for severity, index, images in parts:
                put(severity, index, images)
                advance()
        self._write_note(sorted({*kept, *severities}))

    def _write_note(self, severities: list[int]) -> None:
        note = {"severities": severities, **self.settings, "made_by": f"tta-panda {__version__}"}
        save_file(note_path(self.path), json.dumps(note, indent=1) + "\n")
