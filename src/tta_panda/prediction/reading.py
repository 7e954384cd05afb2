"""Pictures decoded ahead of the encoder, by several threads, in order and in bounded memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from PIL import Image
from torch import Tensor

from tta_panda.data.dataset import reading_threads
from tta_panda.errors import BrokenImageError
from tta_panda.images import AS_SHOWN, Decoding, Framing, as_batch, read_image
from tta_panda.images import Picture as LoadedPicture

Picture = str | os.PathLike[str] | LoadedPicture
"""The path of a file, a Pillow image, an array (H, W, 3) of uint8, or a tensor (3, H, W)."""


class Pause:
    """Stands in a stream of pictures where the next ones will take a while: what is there is predicted."""


PAUSE: Final = Pause()

_LONGEST = 10_000
"""Pictures in a piece, most of which cannot be decoded: rows are to be written, and memory is to be bounded."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """A picture as the model takes it, or the reason why it cannot be read."""

    path: str | None
    image: Tensor | None = None  # (3, H, W), uint8 or floats in [0, 1]
    error: BrokenImageError | None = None


def read_batches(
    pictures: Iterable[Picture | Pause], decode: Callable[[Picture], Decoded], batch_size: int
) -> Iterator[list[Decoded]]:
    """Pictures in order, in pieces with `batch_size` that could be decoded; those that could not stand between them.

    The pictures of the next two batches are decoded while the caller works on one.
    """
    piece: list[Decoded] = []
    usable = 0
    for decoded in _decode_ahead(pictures, decode, 2 * batch_size):
        if isinstance(decoded, Decoded):
            piece.append(decoded)
            usable += decoded.image is not None
        if piece and (usable == batch_size or len(piece) == _LONGEST or isinstance(decoded, Pause)):
            yield piece
            piece, usable = [], 0
    if piece:
        yield piece


def _decode_ahead(
    pictures: Iterable[Picture | Pause], decode: Callable[[Picture], Decoded], ahead: int
) -> Iterator[Decoded | Pause]:
    coming: deque[Future[Decoded]] = deque()
    with reading_threads() as pool:
        try:
            for picture in pictures:
                if not isinstance(picture, Pause):
                    coming.append(pool.submit(decode, picture))
                while coming and (len(coming) > ahead or isinstance(picture, Pause)):
                    yield coming.popleft().result()
                if isinstance(picture, Pause):
                    yield picture
            while coming:
                yield coming.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


class Decoder:
    """Turns pictures of any kind into images of a model's size.

    Args:
        framing: how the model resizes and crops.
        decoding: how files are decoded.
    """

    def __init__(self, framing: int | Framing, decoding: Decoding = AS_SHOWN):
        self.framing = framing
        self.decoding = decoding

    def __call__(self, picture: Picture) -> Decoded:
        path = os.fspath(picture) if isinstance(picture, str | os.PathLike) else None
        try:
            return Decoded(path, self._image(picture))
        except BrokenImageError as error:
            return Decoded(path, error=error)

    def _image(self, picture: Picture) -> Tensor:
        if isinstance(picture, str | os.PathLike):
            return torch.tensor(read_image(Path(picture), self.framing, self.decoding)).permute(2, 0, 1)
        return as_batch([picture], self.framing)[0]


def thumbnails(paths: Iterable[Picture], size: int, decoding: Decoding) -> Iterator[Image.Image | None]:
    """Small square pictures in order; None for what cannot be read."""
    for decoded in _decode_ahead(paths, Decoder(size, decoding), 256):
        if isinstance(decoded, Decoded):
            image = decoded.image
            yield None if image is None else Image.fromarray(image.permute(1, 2, 0).numpy())
