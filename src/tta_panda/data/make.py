"""Make CIFAR-10-C or CIFAR-100-C from clean images, in the published layout, by several processes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from tta_panda.data.cifar import FOLDERS, LABELS, SEVERITIES, load_clean, open_array
from tta_panda.data.corruptions import corrupt_batch, expand_corruptions, load_frost_textures
from tta_panda.data.corruptions.frost import FrostTextures
from tta_panda.data.dataset import ImageDataset
from tta_panda.data.files import image_paths
from tta_panda.data.madefile import MadeFile, write_durably
from tta_panda.data.workers import Map, worker_pool
from tta_panda.errors import DataError

Images = NDArray[np.uint8]
Advance = Callable[[str, float], None]
"""Called with a corruption and the share of the work that was just done on it."""

_IMAGES_AT_ONCE = 500  # enough to be worth sending, few enough to show progress


@dataclass(frozen=True)
class Made:
    """What became of one corruption's file."""

    path: Path
    made: tuple[int, ...]
    """Severities that were made now."""
    holds: tuple[int, ...]
    """Severities that the file holds."""

    def row(self) -> dict[str, Any]:
        return {"file": str(self.path), "made": list(self.made), "holds": list(self.holds)}


def make_cifar_c(
    classes: int,
    clean_root: Path,
    root: Path,
    corruptions: Sequence[str],
    severities: Sequence[int],
    *,
    seed: int = 0,
    workers: int = 1,
    frost: Path | None = None,
    advance: Advance = lambda _name, _share: None,
) -> list[Made]:
    """Make what is missing of these corruptions and severities in `root`; nothing that is there is made again."""
    names = expand_corruptions(corruptions, severities)
    textures = load_frost_textures(frost) if frost else None  # here, because an error would only kill the workers
    clean = load_clean(clean_root, classes)
    folder = root / FOLDERS[classes]
    with _alone_in(folder):
        _write_labels(folder / LABELS, clean.labels)
        files = {name: _made_file(folder, name, len(clean), seed, frost) for name in names}
        missing = {name: tuple(sorted(set(severities) - set(file.severities()))) for name, file in files.items()}
        if any(missing.values()):
            _make(files, missing, clean, seed, workers, textures, advance)
        return [Made(file.path, missing[name], file.severities()) for name, file in files.items()]


def _made_file(folder: Path, name: str, rows: int, seed: int, frost: Path | None) -> MadeFile:
    settings: dict[str, Any] = {"seed": seed}
    if name == "frost":
        settings["textures"] = f"photographs {_digest(frost)}" if frost else "generated"
    return MadeFile(folder / f"{name}.npy", rows, settings)


def _digest(frost: Path) -> str:
    """Of the photographs in their order, which is what decides the result; folders of one name may hold others."""
    digest = hashlib.sha256()
    for path in image_paths(frost):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _make(
    files: dict[str, MadeFile],
    missing: dict[str, tuple[int, ...]],
    clean: ImageDataset,
    seed: int,
    workers: int,
    textures: FrostTextures | None,
    advance: Advance,
) -> None:
    tasks = {
        name: [
            _Task(name, severity, first, min(first + _IMAGES_AT_ONCE, len(clean)))
            for severity in severities
            for first in range(0, len(clean), _IMAGES_AT_ONCE)
        ]
        for name, severities in missing.items()
        if severities
    }
    share = 1 / sum(map(len, tasks.values()))
    with worker_pool(workers, _prepare, (np.asarray(clean.images), seed, textures)) as pool_map:
        for name, own in tasks.items():
            files[name].write(missing[name], _parts(own, pool_map, functools.partial(advance, name, share)))


class _Task(NamedTuple):
    corruption: str
    severity: int
    first: int
    stop: int


def _parts(tasks: Sequence[_Task], pool_map: Map, advance: Callable[[], None]) -> Iterator[tuple[int, int, Images]]:
    for task, images in zip(tasks, pool_map(_corrupted, tasks), strict=True):
        yield task.severity, task.first, images
        advance()


class _Source(NamedTuple):
    images: Images
    seed: int
    textures: FrostTextures | None


_source: _Source | None = None  # of a worker process, sent once and not with every task


def _prepare(images: Images, seed: int, textures: FrostTextures | None) -> None:
    global _source
    _source = _Source(images, seed, textures)


def _corrupted(task: _Task) -> Images:
    if _source is None:
        raise RuntimeError("The worker was not prepared.")
    return corrupt_batch(
        _source.images[task.first : task.stop],
        task.corruption,
        task.severity,
        seed=_source.seed,
        first_index=task.first,
        parameters="cifar",
        frost_textures=_source.textures,
    )


def _write_labels(path: Path, labels: NDArray[Any]) -> None:
    """As published: the labels of the test set five times over, one byte each."""
    expected = np.tile(labels, SEVERITIES).astype(np.uint8)
    if not path.is_file():
        buffer = io.BytesIO()
        np.save(buffer, expected)
        write_durably(path, buffer.getvalue())
    elif not np.array_equal(open_array(path), expected):
        raise DataError(
            f"{path} is there already, but belongs to other images than the clean ones given. Choose another --to PATH."
        )


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Only one process at a time makes files in a folder. The system lifts the lock when a process dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".making.lock", timeout=0)
        lock.acquire()
    except Timeout:
        raise DataError(
            f"Another process is making files in {folder}; wait for it, or choose another --to PATH."
        ) from None
    except OSError as error:
        raise DataError(f"Cannot write to {folder} ({error.strerror or error}). Choose another --to PATH.") from error
    try:
        yield
    except OSError as error:
        raise DataError(f"Cannot write to {folder} ({error.strerror or error}); free some space and go on.") from error
    finally:
        lock.release()
