"""Whether long streams stay as fast and as small as they begin: speed and memory along many thousands of images."""

from __future__ import annotations

import contextlib
import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tta_panda.allocator import give_back_freed_memory
from tta_panda.errors import InvalidInputError
from tta_panda.evaluation.memory import memory_in_use
from tta_panda.methods import create_method
from tta_panda.methods.base import Method
from tta_panda.models import Classifier, load_model
from tta_panda.models.base import framing_of
from tta_panda.models.devices import clock
from tta_panda.prediction.job import PredictionJob
from tta_panda.prediction.reading import Decoder
from tta_panda.results.figure import Line, LineFigure, Panel
from tta_panda.speed.measure import Advance, Report, Row, Settings, Spread
from tta_panda.speed.workload import draw_pictures, make_classes

_PREDICT = "predict"
_STREAMS = ("tent+panda", "dmn+panda", _PREDICT)
_PICTURES = 2_000  # drawn once, and shown again and again
_READINGS, _WARM_UP = 50, 5  # of speed and memory along a stream; what the first ones say is not counted
_NOISE = 20.0  # standard deviation, of 255
_PACE_EVERY = 10  # batches, the encoder alone is timed: a machine that slows down slows both


class Course(NamedTuple):
    """What was read along a stream, reading by reading."""

    name: str
    images: list[int]  # so far
    memory: list[int]  # bytes in use
    speed: list[float]  # images per second, since the reading before
    times_encoder: list[float]  # time of a batch over that of a bare pass, since the reading before

    @property
    def row(self) -> Row:
        images, megabytes = self.images[_WARM_UP:], np.array(self.memory[_WARM_UP:]) / 2**20
        half = _WARM_UP + len(images) // 2
        first, second = Spread.of(self.times_encoder[_WARM_UP:half]), Spread.of(self.times_encoder[half:])
        return {
            "stream": self.name,
            "images": self.images[-1],
            "MB": float(np.median(megabytes)),
            "largest less smallest": float(np.ptp(megabytes)),
            "MB per 100,000 images": float(np.polyfit(images, megabytes, 1)[0]) * 100_000,
            "images/s": float(np.median(self.speed[_WARM_UP:])),
            "x encoder, first half": first.median,
            "second half": second.median,
            "±": float(np.hypot(first.margin, second.margin)),
        }


def measure_soak(settings: Settings, advance: Advance) -> Report:
    """A row for each stream: memory and its range, speed in both halves, without what the beginning costs."""
    batches = -(-settings.images // settings.batch_size)
    if batches < _READINGS:
        raise InvalidInputError(
            f"A stream is read at {_READINGS} places and needs as many batches: with --batch-size "
            f"{settings.batch_size}, at least --images {_READINGS * settings.batch_size}, got {settings.images}."
        )
    model = load_model(settings.model, settings.device)
    classifier = make_classes(model, settings.classes)
    pictures = draw_pictures(min(settings.images, _PICTURES), model.image_size)
    pace = partial(torch.no_grad()(model.encode_image), model.prepare(pictures[: settings.batch_size]))
    names = settings.methods or _STREAMS
    courses = []
    for name in names:
        gc.collect()
        give_back_freed_memory()  # what the stream before needed must not hide what this one does
        if name == _PREDICT:
            stream = _predict(classifier, pictures, settings.batch_size)
        else:
            stream = _adapt(create_method(name, classifier), pictures, settings.batch_size)
        with contextlib.closing(stream):
            course = _follow(name, stream, pace, batches, settings, lambda share: advance(share / len(names)))
        courses.append(course)
    notes = [
        f"{model.name}, batches of {settings.batch_size} images, {settings.classes} classes, "
        f"{torch.get_num_threads()} thread(s), by {settings.clock}; the first {_WARM_UP} of {_READINGS} readings are "
        f"left out. x encoder: over a bare pass of as many images, made after every {_PACE_EVERY} batches."
    ]
    return Report([course.row for course in courses], notes, [_figure(courses)])


def _adapt(method: Method, pictures: Tensor, batch_size: int) -> Generator[object]:
    """Adapts to batch after batch, without end, of pictures under noise that is new each time."""
    generator = torch.Generator().manual_seed(0)
    for start in itertools.count(step=batch_size):
        batch = pictures[torch.arange(start, start + batch_size) % len(pictures)]
        noise = _NOISE * torch.randn(batch.shape, generator=generator)
        yield method.adapt((batch + noise).clamp_(0, 255).byte())


def _predict(classifier: Classifier, pictures: Tensor, batch_size: int) -> Generator[object]:
    """Reads files and writes rows, batch after batch, as `tta-panda predict` does."""
    method, decoder = create_method("clip+panda", classifier), Decoder(framing_of(classifier.model))
    with tempfile.TemporaryDirectory() as folder:
        paths = [f"{folder}/{place}.png" for place in range(len(pictures))]
        for path, picture in zip(paths, pictures.permute(0, 2, 3, 1).numpy(), strict=True):
            Image.fromarray(picture).save(path)
        job = PredictionJob(method, decoder, batch_size, settings={}, output=Path(folder, "predictions.csv"))
        job.start()
        yield from job.run(itertools.cycle(paths))


def _follow(
    name: str, stream: Iterator[object], pace: Callable[[], object], batches: int, settings: Settings, advance: Advance
) -> Course:
    """Take so many batches of a stream, and read speed and memory on the way."""
    course = Course(name, [], [], [], [])
    done = 0
    for reading in range(1, _READINGS + 1):
        due = reading * batches // _READINGS - done
        taken, paces = 0.0, []
        for start in range(0, due, _PACE_EVERY):
            several = min(_PACE_EVERY, due - start)
            begin = _now(settings)
            for _ in itertools.islice(stream, several):
                pass
            middle = _now(settings)
            pace()
            taken += middle - begin
            paces.append(_now(settings) - middle)
            advance(several / batches)
        done += due
        course.images.append(done * settings.batch_size)
        course.memory.append(memory_in_use(torch.device(settings.device)) or 0)
        course.speed.append(due * settings.batch_size / taken)
        course.times_encoder.append(taken / due / float(np.median(paces)))
    return course


def _now(settings: Settings) -> float:
    return clock(torch.device(settings.device)) if settings.clock == "time" else time.process_time()


def _figure(courses: Sequence[Course]) -> LineFigure:
    memory, speed = [], []
    for hue, course in enumerate(courses):
        thousands = [images / 1000 for images in course.images]
        memory.append(Line(course.name, thousands, [size / 2**20 for size in course.memory], hue=hue))
        speed.append(Line(course.name, thousands, course.times_encoder, hue=hue))
    panels = [
        Panel("thousand images", "memory of the process (MB)", memory, from_zero=True),
        Panel("thousand images", "time of a batch, × encoder", speed, from_zero=True),
    ]
    return LineFigure("Memory and speed along a stream", panels, name="soak")
