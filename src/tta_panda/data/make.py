"""Make CIFAR-10-C or CIFAR-100-C from clean images, in the published layout, one file per process.

A note beside each file, `fog.json`, lists the severities whose rows are filled, and never more than the file holds: an
empty note is written before the file, and extended after it. A crash in between costs time, but the note stays true.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray

from tta_panda import __version__
from tta_panda.data import DATASETS
from tta_panda.data.cifar import LABELS, SEVERITIES, Cifar, note_path, open_array, read_note
from tta_panda.data.corruptions import corrupt_batch, expand_corruptions
from tta_panda.data.corruptions.frost import FrostTextures, load_frost_textures
from tta_panda.errors import DataError, UnknownNameError
from tta_panda.executors import Report, local_executor
from tta_panda.files import locked, remove_parts, save_file, saving


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
    executor = local_executor(workers)
    with locked(folder):
        remove_parts(folder)
        _write_labels(folder / LABELS, clean.labels)
        rows, tasks = [], []
        for name in names:
            path = folder / f"{name}.npy"
            settings: dict[str, Any] = {"seed": seed}
            if name == "frost":
                settings["textures"] = textures.name if textures else "generated"
            there = _severities_in(path, SEVERITIES * len(clean), settings)
            missing = sorted(set(severities) - set(there))
            holds = sorted({*there, *missing})
            rows.append({"file": str(path), "made": missing, "holds": holds})
            if missing:
                tasks.append((path, holds, settings))
        results = executor.run(
            partial(_make_file, clean.images, textures),
            tasks,
            report=lambda task, share: advance(task[0].stem, share / len(tasks)),
        )
        with contextlib.closing(results):
            for _, error in results:
                if error is not None:
                    raise error
        return rows


def _make_file(
    clean: NDArray[np.uint8],
    textures: FrostTextures | None,
    task: tuple[Path, list[int], dict[str, Any]],
    report: Report,
) -> None:
    """Make the whole file of a corruption; the rows of other severities than these are zero."""
    path, severities, settings = task
    note = {**settings, "made_by": f"tta-panda {__version__}"}
    if not path.exists():
        _write_note(path, {"severities": [], **note})
    with saving(path) as part, part.open("wb") as file:
        # Not a memory map: where the disk is full, writing to one ends the process without a word.
        shape = (SEVERITIES * len(clean), *clean.shape[1:])
        write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for severity in range(1, SEVERITIES + 1):
            if severity not in severities:
                file.seek(clean.nbytes, os.SEEK_CUR)  # most file systems store nothing for it
                continue
            made = corrupt_batch(
                clean, path.stem, severity, seed=settings["seed"], parameters="cifar", frost_textures=textures
            )
            file.write(made.tobytes())
            report(1 / len(severities))
        file.truncate()
    _write_note(path, {"severities": severities, **note})


def _write_note(path: Path, note: dict[str, Any]) -> None:
    save_file(note_path(path), json.dumps(note, indent=1) + "\n")


def _severities_in(path: Path, rows: int, settings: dict[str, Any]) -> list[int]:
    """Severities that a file holds. A file without a note is a published one and holds all of them."""
    if not path.is_file():
        return []
    expected, found = (rows, 32, 32, 3), open_array(path).shape
    if found != expected:
        raise DataError(f"{path} should have the shape {expected}, found {found}. Delete it to make it again.")
    note = read_note(path)
    if note is None:
        return list(range(1, SEVERITIES + 1))
    for key, value in settings.items():
        if note.get(key) != value:
            raise DataError(
                f"{path} was made with {key} {note.get(key)!r}, not {value!r}, and a file holds only one of them. "
                "Choose another folder with -o PATH, or delete the file to make it again."
            )
    return list(note["severities"])


def _makeable(name: str) -> Cifar:
    found = {name: DATASETS.get(name) for name in DATASETS}
    sources = {name: source for name, source in found.items() if isinstance(source, Cifar) and source.folder}
    if name not in sources:
        raise UnknownNameError("data set to make", name, sources)
    return sources[name]


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
