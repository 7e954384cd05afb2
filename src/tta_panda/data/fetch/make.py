"""Make CIFAR-10-C or CIFAR-100-C from clean images, in the published layout, with several processes."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tta_panda.data import DATASETS
from tta_panda.data.corruptions import corrupt_batch, expand_corruptions
from tta_panda.data.corruptions.frost import load_frost_textures, textures_name
from tta_panda.data.fetch.corruption_file import CorruptionFile
from tta_panda.data.read.cifar import LABELS, SEVERITIES, CorruptedCifar, open_array
from tta_panda.errors import DataError, UnknownNameError
from tta_panda.executors import local_executor
from tta_panda.files import atomic_path, locked, remove_parts

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
    clean = source.clean.load_from(clean_root)
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


def _makeable(name: str) -> CorruptedCifar:
    sources = {one: source for one in DATASETS if isinstance(source := DATASETS.get(one), CorruptedCifar)}
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
        with atomic_path(path) as part:
            np.save(part, expected)
    elif not np.array_equal(open_array(path), expected):
        raise DataError(
            f"{path} belongs to other images than the clean ones given. Choose another folder with -o PATH."
        )
