"""Predictions of a method for pictures of any kind, in order, beside those of the plain classifier."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from tta_panda.errors import BrokenImageError, InvalidInputError
from tta_panda.escapes import path_text
from tta_panda.images import AS_SHOWN, Decoding
from tta_panda.methods.base import Method, adapt_beside_plain
from tta_panda.models.base import framing_of
from tta_panda.options import Count, check_option
from tta_panda.prediction.reading import Pause, Picture, decode, read_batches
from tta_panda.prediction.summary import Summary
from tta_panda.progress import make_progress

TOP = 5


@dataclass(frozen=True)
class Prediction:
    """The classes that a method and the plain classifier predict for one picture, or why it cannot be read."""

    index: int
    """Position in the stream, from 0."""
    path: str | None = None
    label: str | None = None
    """The true class, where the picture's folder tells it to `tta-panda predict`."""
    predicted: str | None = None
    """The class that the method predicts."""
    probability: float | None = None
    margin: float | None = None
    """Probability of the predicted class less that of the next."""
    top: tuple[tuple[str, float], ...] = ()
    """The most probable classes with their probabilities."""
    plain_predicted: str | None = None
    """The class that the classifier predicts without adaptation and without Panda."""
    plain_probability: float | None = None
    error: str | None = None
    """Why the picture cannot be read."""

    @classmethod
    def of(
        cls, index: int, path: str | None, label: str | None, class_names: Sequence[str], own: Tensor, plain: Tensor
    ) -> Self:
        """From the probabilities (K,) of the method and of the plain classifier."""
        values, classes = own.topk(min(TOP, len(class_names)))
        top = tuple((class_names[k], value) for k, value in zip(classes.tolist(), values.tolist(), strict=True))
        (predicted, probability), (_, second) = top[:2]
        k = int(plain.argmax())
        return cls(
            index, path, label, predicted, probability, probability - second, top, class_names[k], float(plain[k])
        )

    @property
    def changed(self) -> bool:
        """Whether the plain classifier predicts another class."""
        return self.predicted != self.plain_predicted

    def __repr__(self) -> str:
        name = self.path if self.path is not None else f"picture {self.index}"
        if self.error is not None:
            return f"<{name}: skipped, {self.error}>"
        plain = f", plain {self.plain_predicted} {self.plain_probability:.0%}" if self.changed else ""
        return f"<{name}: {self.predicted} {self.probability:.0%}{plain}>"


def predict(
    method: Method,
    pictures: Iterable[Picture | Pause],
    *,
    batch_size: int = 100,
    skip_broken: bool = True,
    progress: bool = False,
) -> Iterator[Prediction]:
    """Predict pictures in order, adapting to them on the way.

    The method continues from its current state; call `method.reset()` before a new stream.

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
    check_option("batch_size", batch_size, Count)
    return _predict(method, pictures, batch_size, skip_broken, progress)


def _predict(
    method: Method, pictures: Iterable[Picture | Pause], batch_size: int, skip_broken: bool, progress: bool
) -> Iterator[Prediction]:
    total = len(pictures) if isinstance(pictures, Sized) else None
    summary = Summary.empty(method.classifier.class_names)
    with make_progress("predicting", total) if progress else nullcontext() as bar:
        for batch in predict_batches(method, pictures, batch_size, summary):
            for prediction in batch:
                if prediction.error is not None and not skip_broken:
                    raise BrokenImageError(path_text(prediction.path or str(prediction.index)), prediction.error)
                yield prediction
            if bar:
                bar.advance(bar.task_ids[0], len(batch))


def predict_batches(
    method: Method,
    pictures: Iterable[Picture | Pause],
    batch_size: int,
    summary: Summary,
    decoding: Decoding = AS_SHOWN,
    label_of: Callable[[str], str | None] = lambda _path: None,
    first: int = 0,
) -> Iterator[list[Prediction]]:
    """Predict pictures batch by batch, and count them in a summary.

    Args:
        label_of: the true class of a path, if it is known.
        first: index of the first picture.
    """
    fitted = partial(decode, framing=framing_of(method.classifier.model), decoding=decoding)
    names = method.classifier.class_names
    since = time.perf_counter()
    for decoded in read_batches(pictures, fitted, batch_size):
        start = time.perf_counter()
        own, plain = _probabilities(method, [image for _, image in decoded if isinstance(image, Tensor)])
        busy = time.perf_counter() - start
        probabilities = iter(zip(own, plain, strict=True))
        predictions = []
        for index, (path, image) in enumerate(decoded, first):
            label = label_of(path) if path else None
            if isinstance(image, BrokenImageError):
                predictions.append(Prediction(index, path, label, error=image.reason))
            else:
                predictions.append(Prediction.of(index, path, label, names, *next(probabilities)))
        now = time.perf_counter()
        summary.add(Summary.of_batch(names, predictions, own, plain, now - since, busy))
        first, since = first + len(predictions), now
        yield predictions


@torch.no_grad()
def _probabilities(method: Method, images: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Probabilities (B, K) of the method and of the plain classifier."""
    if not images:
        nothing = torch.empty(0, len(method.classifier.class_names))
        return nothing, nothing
    own, plain = adapt_beside_plain(method, images)
    return own.softmax(dim=1).cpu(), plain.softmax(dim=1).cpu()
