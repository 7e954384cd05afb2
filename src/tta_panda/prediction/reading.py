"""Pictures to predict: lists, class names from folders, watched folders, and decoding ahead in threads."""

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

from tta_panda.data.dataset import reading_threads
from tta_panda.data.folders import CLASS_LIST, class_folders, named_classes
from tta_panda.data.listing import find_images
from tta_panda.data.source import published_classes
from tta_panda.errors import BrokenImageError, InvalidInputError
from tta_panda.escapes import path_text
from tta_panda.images import AS_SHOWN, Decoding, Framing, fit_picture, read_image
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
"""From the path of a picture to its true class, where that is known."""

_MAX_PIECE = 10_000
"""Pictures in a piece where few can be decoded, so that rows are written now and then, and memory is bounded."""


class Pause:
    """Marks a place in a stream of pictures where no more are there yet: those before it are predicted at once."""


PAUSE: Final = Pause()


Decoded = tuple[str | None, Tensor | BrokenImageError]
"""The path of a picture from a file, and its pixels as the model takes them (3, H, W), or why it cannot be read."""


def decode(picture: Picture, framing: int | Framing, decoding: Decoding = AS_SHOWN) -> Decoded:
    """Decode a picture of any kind, resized and cropped to a model's size."""
    if not isinstance(picture, str | os.PathLike):
        return None, as_batch([picture], framing)[0]
    path = os.fspath(picture)
    try:
        return path, torch.tensor(read_image(Path(path), framing, decoding)).permute(2, 0, 1)
    except BrokenImageError as error:
        return path, error


def read_batches(
    pictures: Iterable[Picture | Pause], decode: Callable[[Picture], Decoded], batch_size: int
) -> Iterator[list[Decoded]]:
    """Pictures in order, in pieces with `batch_size` that could be decoded; those that could not stand between them.

    The pictures of the next two batches are decoded while the caller works on one.
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
    """Results in order, of which threads compute at most `ahead` before they are asked for, and none beyond a pause."""
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
    """A picture as a small JPEG in base64; empty if it cannot be read."""
    _, pixels = decode(picture, THUMBNAIL, decoding)
    if not isinstance(pixels, Tensor):
        return ""
    if pixels.is_floating_point():
        pixels = (255 * pixels).round().to(torch.uint8)
    content = io.BytesIO()
    image = Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())
    fit_picture(image, THUMBNAIL).save(content, "JPEG", quality=_JPEG_QUALITY)
    return base64.b64encode(content.getvalue()).decode()


def add_thumbnails(rows: Iterable[dict[str, Any]], decoding: Decoding) -> Iterator[dict[str, Any]]:
    """Rows of predictions, each with the `thumbnail` of its picture."""
    added = _map_ahead(lambda row: {**row, "thumbnail": thumbnail(row["path"], decoding)}, rows, 100)
    return cast(Iterator[dict[str, Any]], added)


def find_classes(
    places: Sequence[Path], class_names: Sequence[str] | None, model: ImageModel
) -> tuple[list[str], LabelOf]:
    """Names of the classes, with spaces for underscores, and a function from a path to the class of its folder.

    Args:
        places: where pictures are. Sub-folders or a class list of folders name the classes.
        class_names: the names, if they are known; sub-folders of the same names then only label pictures.
        model: if nothing else names classes, a network that was trained on ImageNet has ImageNet's.
    """
    folders: dict[Path, str] = {}
    found: list[str] = []
    for root in (Path(os.path.expanduser(place)) for place in places):  # unlike Path's, it takes a user that is not
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
            f"line. They can be inferred from sub-folders or a {CLASS_LIST}, and {where} has neither."
        )
    labels = {folder.absolute(): _spaced(name) for folder, name in folders.items() if _spaced(name) in set(names)}
    return names, lambda path: next((labels[above] for above in Path(path).absolute().parents if above in labels), None)


def _spaced(name: str) -> str:
    """A class name as classifiers have it."""
    return name.replace("_", " ").strip()


def watch_folder(
    folder: Path,
    seen: set[str] | None = None,
    *,
    every: float = 1.0,
    until_idle: float | None = None,
    stop: threading.Event | None = None,
) -> Iterator[str | Pause]:
    """Paths of pictures as they appear in a folder or below it, the oldest first, with a pause when there are no more.

    A file counts as complete when two looks find the same size and time.

    Args:
        folder: where to look; it may be empty.
        seen: paths to skip, as `path_text` writes them. What is found is added.
        every: seconds between looks.
        until_idle: end after this many seconds without a new picture; None never ends.
        stop: end when this is set.
    """
    stop = stop or threading.Event()
    seen = set() if seen is None else seen
    growing: dict[str, tuple[int, int]] = {}
    last_found = time.monotonic()
    while not stop.is_set() and (until_idle is None or time.monotonic() - last_found < until_idle):
        now = _new_files(folder, seen)
        complete = [path for path, state in now.items() if growing.get(path) == state]
        for path in sorted(complete, key=lambda path: (now[path][1], path)):
            if stop.is_set():
                return
            seen.add(path_text(path))
            yield path
        if complete or now.keys() - growing.keys():
            last_found = time.monotonic()
        growing = {path: state for path, state in now.items() if path_text(path) not in seen}
        yield PAUSE
        stop.wait(every)


def _new_files(folder: Path, seen: set[str]) -> dict[str, tuple[int, int]]:
    """Size and time of every new picture; files may vanish between the two looks."""
    found = {}
    for path in find_images([folder]).paths:
        if path_text(path) not in seen:
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found[str(path)] = stat.st_size, stat.st_mtime_ns
    return found
