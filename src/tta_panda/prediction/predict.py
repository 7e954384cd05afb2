"""Predictions of a method for pictures of any kind, one by one, beside those of the plain classifier."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.errors import BrokenImageError, InvalidInputError
from tta_panda.escapes import path_text
from tta_panda.methods.base import Method
from tta_panda.models.base import framing_of
from tta_panda.prediction.reading import Decoded, Decoder, Pause, Picture, read_batches
from tta_panda.progress import make_progress

TOP = 5


@dataclass(frozen=True)
class Prediction:
    """What a method says of one picture; without a class where the picture could not be read."""

    index: int
    """Place in the stream, from 0."""
    path: str | None = None
    predicted: str | None = None
    """The predicted class."""
    probability: float | None = None
    margin: float | None = None
    """Probability of the predicted class less that of the next."""
    top: tuple[tuple[str, float], ...] = ()
    """The most likely classes with their probabilities."""
    plain_predicted: str | None = None
    """What the classifier says without adaptation and without Panda."""
    plain_probability: float | None = None
    error: str | None = None
    """Why the picture could not be read."""

    @property
    def changed(self) -> bool:
        """Whether the plain classifier says something else."""
        return self.predicted != self.plain_predicted

    def __repr__(self) -> str:
        name = self.path if self.path is not None else f"picture {self.index}"
        if self.error is not None:
            return f"<{name}: skipped, {self.error}>"
        plain = f", plain {self.plain_predicted} {self.plain_probability:.0%}" if self.changed else ""
        return f"<{name}: {self.predicted} {self.probability:.0%}{plain}>"


@dataclass(frozen=True, eq=False)
class PredictedBatch:
    """The predictions of a batch, and all probabilities (B, K) of the pictures that could be read."""

    predictions: list[Prediction]
    probabilities: Tensor
    plain_probabilities: Tensor
    seconds: float = 0.0
    """What the method and its encoder took."""


def predict(
    method: Method,
    pictures: Iterable[Picture | Pause],
    *,
    batch_size: int = 100,
    skip_broken: bool = True,
    progress: bool = False,
) -> Iterator[Prediction]:
    """Predict pictures in order, adapting to them on the way.

    The method goes on where it stands; call `method.reset()` before a new stream.

    Args:
        method: what predicts.
        pictures: paths of files, Pillow images, arrays (H, W, 3) or tensors (3, H, W), of any sizes. A generator may be
            endless: two batches are read ahead, unless it yields `tta_panda.PAUSE` to have what is there predicted.
        batch_size: pictures that the method adapts to at a time. 1 is possible.
        skip_broken: give a prediction with an `error` for what cannot be read. False raises `DataError` instead.
        progress: show a progress bar.
    """
    if isinstance(pictures, str | os.PathLike):
        raise InvalidInputError(f"pictures is a list of paths or pictures, got a single path; write [{pictures!r}].")
    check_range("batch_size", batch_size, 1)
    return _predict(method, pictures, batch_size, skip_broken, progress)


def _predict(
    method: Method, pictures: Iterable[Picture | Pause], batch_size: int, skip_broken: bool, progress: bool
) -> Iterator[Prediction]:
    total = len(pictures) if isinstance(pictures, Sized) else None
    decoder = Decoder(framing_of(method.classifier.model))
    with make_progress("predicting", total) if progress else nullcontext() as bar:
        for batch in predict_batches(method, pictures, decoder, batch_size):
            for prediction in batch.predictions:
                if prediction.error is not None and not skip_broken:
                    raise BrokenImageError(path_text(prediction.path or str(prediction.index)), prediction.error)
                yield prediction
            if bar:
                bar.advance(bar.task_ids[0], len(batch.predictions))


def predict_batches(
    method: Method, pictures: Iterable[Picture | Pause], decoder: Decoder, batch_size: int, start: int = 0
) -> Iterator[PredictedBatch]:
    """The same, batch by batch; the first picture has the index `start`."""
    for pieces in read_batches(pictures, decoder, batch_size):
        yield _predict_batch(method, pieces, start)
        start += len(pieces)


@torch.no_grad()
def _predict_batch(method: Method, pieces: list[Decoded], start: int) -> PredictedBatch:
    images = [piece.image for piece in pieces if piece.image is not None]
    names = method.classifier.class_names
    begun = time.perf_counter()
    if not images:
        probabilities = plain = torch.empty(0, len(names))
    else:
        logits, plain_logits = method.adapt_beside_plain(images)
        probabilities, plain = logits.softmax(dim=1).cpu(), plain_logits.softmax(dim=1).cpu()
    seconds = time.perf_counter() - begun
    rows = iter(zip(probabilities, plain, strict=True))
    predictions = [
        Prediction(index, piece.path, error=piece.error.reason)
        if piece.error is not None
        else _prediction(index, piece.path, names, *next(rows))
        for index, piece in enumerate(pieces, start)
    ]
    return PredictedBatch(predictions, probabilities, plain, seconds)


def _prediction(index: int, path: str | None, names: tuple[str, ...], own: Tensor, plain: Tensor) -> Prediction:
    values, classes = own.topk(min(TOP, len(names)))
    top = tuple((names[k], value) for k, value in zip(classes.tolist(), values.tolist(), strict=True))
    best = int(plain.argmax())
    (predicted, probability), (_, next_probability) = top[:2]
    return Prediction(
        index, path, predicted, probability, probability - next_probability, top, names[best], float(plain[best])
    )
