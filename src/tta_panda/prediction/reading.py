"""Read pictures to predict: decode ahead in threads, infer class names from folders, watch folders."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import torch
from PIL import Image
from torch import Tensor

from tta_panda.data import find_source, is_stored, load_data, split_place
from tta_panda.data.dataset import ImageFiles, reading_threads
from tta_panda.data.folders import class_folders, named_classes
from tta_panda.data.listing import CLASS_LIST, find_images
from tta_panda.data.source import ImageSource, published_classes
from tta_panda.errors import BrokenImageError, DataError, InvalidInputError
from tta_panda.escapes import path_text
from tta_panda.files import expand
from tta_panda.images import AS_SHOWN, Decoding, Framing, StoredImage, fit_picture, read_image
from tta_panda.models.base import ImageModel
from tta_panda.models.linear import LinearHeadModel
from tta_panda.models.prepare import Picture as LoadedPicture
from tta_panda.models.prepare import as_batch

R = TypeVar("R")
Picture = str | os.PathLike[str] | LoadedPicture
"""The path of a file, a Pillow image, an array (H, W, 3) of uint8, or a tensor (3, H, W)."""

THUMBNAIL = 96
"""Side of a thumbnail in pixels."""
_JPEG_QUALITY = 70
LabelOf = Callable[[str], str | None]
"""A function from the path of a picture to its true class, or None if it is not known."""

_MAX_PIECE = 10_000
"""Most pictures in a batch, including unreadable ones: rows are written regularly, and memory is bounded."""


class Pause:
    """Marks a point in a stream of pictures at which all pictures so far are predicted without waiting for more."""


PAUSE: Final = Pause()


Decoded = tuple[str | None, Tensor | BrokenImageError]
"""The path of a picture, if it has one, and its pixels (3, H, W) at the model's size, or why it cannot be read."""


def decode(picture: Picture, framing: int | Framing, decoding: Decoding = AS_SHOWN) -> Decoded:
    """Decode a picture of any kind, and resize and crop it to a model's size."""
    if not isinstance(picture, str | os.PathLike):
        return None, as_batch([picture], framing)[0]
    path = os.fspath(picture)
    try:
        source = picture if isinstance(picture, StoredImage) else Path(path)
        return path, torch.tensor(read_image(source, framing, decoding)).permute(2, 0, 1)
    except BrokenImageError as error:
        return path, error


def read_batches(
    pictures: Iterable[Picture | Pause], decode: Callable[[Picture], Decoded], batch_size: int
) -> Iterator[list[Decoded]]:
    """Decode pictures in order, in batches of `batch_size` readable ones; unreadable ones are kept in their places.

    The pictures of the next two batches are decoded while the caller processes one.
    """
    piece: list[Decoded] = []
    usable = 0
    for decoded in _map_ahead(decode, pictures, 2 * batch_size):
        if not isinstance(decoded, Pause):
            piece.append(decoded)
            usable += isinstance(decoded[1], Tensor)
        if piece and (usable == batch_size or len(piece) == _MAX_PIECE or isinstance(decoded, Pause)):
            yield piece
            piece, usable = [], 0
    if piece:
        yield piece


def _map_ahead(function: Callable[[Any], R], items: Iterable[Any], ahead: int) -> Iterator[R | Pause]:
    """Map a function over items in threads, in order: at most `ahead` items in advance, and none beyond a pause."""
    coming: deque[Future[R]] = deque()
    with reading_threads() as pool:
        try:
            for item in items:
                if not isinstance(item, Pause):
                    coming.append(pool.submit(function, item))
                while coming and (len(coming) > ahead or isinstance(item, Pause)):
                    yield coming.popleft().result()
                if isinstance(item, Pause):
                    yield item
            while coming:
                yield coming.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def thumbnail(picture: Picture, decoding: Decoding = AS_SHOWN) -> str:
    """Encode a picture as a small JPEG in base64; empty if it cannot be read."""
    _, pixels = decode(picture, THUMBNAIL, decoding)
    if not isinstance(pixels, Tensor):
        return ""
    if pixels.is_floating_point():
        pixels = (255 * pixels.clamp(0, 1)).round().to(torch.uint8)  # resampling overshoots
    content = io.BytesIO()
    image = Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())
    fit_picture(image, THUMBNAIL).save(content, "JPEG", quality=_JPEG_QUALITY)
    return base64.b64encode(content.getvalue()).decode()


def add_thumbnails(rows: Iterable[dict[str, Any]], decoding: Decoding) -> Iterator[dict[str, Any]]:
    """Add the `thumbnail` of its picture to each row of predictions."""
    added = _map_ahead(lambda row: {**row, "thumbnail": thumbnail(row["path"], decoding)}, rows, 100)
    return cast(Iterator[dict[str, Any]], added)


def find_pictures(places: Sequence[str]) -> tuple[list[Picture], str]:
    """Find pictures in files and folders, then those in shards and data sets; also say which files were skipped."""
    found = find_images(each for each in places if not is_stored(each))
    pictures: list[Picture] = [str(path) for path in found.paths]
    for place in filter(is_stored, places):
        pictures += cast(ImageSource, find_source(place)).images(split_place(place)[1])
    if not pictures:
        raise DataError(f"There are no images in {', '.join(places)}.")
    return pictures, str(found) if found.skipped else ""


def find_classes(
    places: Sequence[Path], class_names: Sequence[str] | None, model: ImageModel
) -> tuple[list[str], LabelOf]:
    """Find the names of the classes, and a function from a path to the class of its folder.

    Underscores in names are replaced by spaces.

    Args:
        places: files and folders of pictures. Classes are named by sub-folders, or by a class list in a folder.
        class_names: names of the classes, if they are known; sub-folders of the same names then only label pictures.
        model: a network that was trained on ImageNet provides ImageNet's classes if nothing else names any.
    """
    folders: dict[Path, str] = {}
    stored: dict[str, str] = {}
    found: list[str] = []
    for root in map(expand, places):
        if is_stored(root):
            with contextlib.nullcontext() if class_names is None else contextlib.suppress(DataError):  # without labels
                dataset = cast(ImageFiles, load_data(str(root)))
                titles = list(map(_spaced, dataset.class_names))
                found += titles
                stored |= {os.fspath(path): titles[k] for path, k in zip(dataset.paths, dataset.labels, strict=True)}
        if not root.is_dir():
            continue
        if class_names is None:
            class_folders_here, names_here = named_classes(root)
            folders |= dict(zip(class_folders_here, names_here, strict=False))
            found += names_here
        else:
            folders |= {folder: folder.name for folder in class_folders(root)}
    names = list(dict.fromkeys(map(_spaced, found))) if class_names is None else list(map(_spaced, class_names))
    imagenet = list(published_classes("imagenet").values())
    if class_names is None and len(names) < 2:
        if isinstance(model, LinearHeadModel) and model.head.out_features == len(imagenet):
            return imagenet, lambda _path: None
        where = ", ".join(map(str, places[:3])) or "a list of paths"
        raise InvalidInputError(
            f"Cannot infer the class names; pass --classes cat,dog,bird, or --classes-file FILE with one name per "
            f"line. They can be inferred from sub-folders or a {CLASS_LIST}, but {where} has neither."
        )
    labels = {folder.absolute(): _spaced(name) for folder, name in folders.items() if _spaced(name) in set(names)}

    def label_of(path: str) -> str | None:
        if path in stored:
            return stored[path] if stored[path] in names else None
        return next((labels[above] for above in Path(path).absolute().parents if above in labels), None)

    return names, label_of


def _spaced(name: str) -> str:
    """Replace underscores in a class name by spaces."""
    return name.replace("_", " ").strip()


def watch_folder(
    folder: Path,
    seen: set[str] | None = None,
    *,
    every: float = 1.0,
    until_idle: float | None = None,
    stop: threading.Event | None = None,
) -> Iterator[str | Pause]:
    """Yield paths of pictures as they appear in a folder or its sub-folders, oldest first, and `PAUSE` after each scan.

    A file counts as complete when two scans find the same size and modification time.

    Args:
        folder: the folder to watch; it may be empty.
        seen: paths to skip, as `path_text` writes them. New paths are added to it.
        every: seconds between scans.
        until_idle: end after this many seconds without a new picture; None never ends.
        stop: end when this is set.
    """
    stop = stop or threading.Event()
    seen = set() if seen is None else seen
    last_scan: dict[str, tuple[int, int]] = {}
    last_found = time.monotonic()
    while not stop.is_set() and (until_idle is None or time.monotonic() - last_found < until_idle):
        now = _new_files(folder, seen)
        complete = [path for path, state in now.items() if last_scan.get(path) == state]
        for path in sorted(complete, key=lambda path: (now[path][1], path)):
            if stop.is_set():
                return
            seen.add(path_text(path))
            yield path
        if complete or now.keys() - last_scan.keys():
            last_found = time.monotonic()
        last_scan = {path: state for path, state in now.items() if path_text(path) not in seen}
        yield PAUSE
        stop.wait(every)


def _new_files(folder: Path, seen: set[str]) -> dict[str, tuple[int, int]]:
    """Size and modification time of every new picture; files that vanish meanwhile are omitted."""
    found = {}
    for path in find_images([folder]).paths:
        if path_text(path) not in seen:
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found[str(path)] = stat.st_size, stat.st_mtime_ns
    return found
