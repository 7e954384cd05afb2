"""How much of the time that a stream takes is spent in the encoder: the rest is waiting for images."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tta_panda.data.dataset import Dataset, ImageDataset
from tta_panda.data.read.files import ImageFiles
from tta_panda.data.stream import Stream
from tta_panda.images import Framing
from tta_panda.models import ImageModel, load_model
from tta_panda.models.base import framing_of
from tta_panda.speed.measure import Advance, Report, Row, Settings, Spread, take_turns

_BATCHES, _ROUNDS = 6, 5
_ARRAY, _FILE = 32, 500  # pixels a side


def measure_stream(settings: Settings, advance: Advance) -> Report:
    """A row for images in an array, as CIFAR's are, and for JPEG files: the encoder's share of the time."""
    model = load_model(settings.model, settings.device)
    count = _BATCHES * settings.batch_size
    with tempfile.TemporaryDirectory() as folder:
        sources: dict[str, tuple[Dataset, int | Framing | None]] = {
            f"array, {_ARRAY} px": (_array(count), None),
            f"JPEG files, {_FILE} px": (_files(Path(folder), count), framing_of(model)),
        }
        shares: dict[str, list[float]] = {source: [] for source in sources}

        def encode_all(source: str) -> None:
            dataset, fit = sources[source]
            shares[source].append(_busy_share(model, Stream(dataset, settings.batch_size, fit=fit)))

        images = torch.rand(settings.batch_size, 3, model.image_size, model.image_size).to(model.device)
        ways: dict[str, Callable[[], None]] = {source: partial(encode_all, source) for source in sources}
        ways["alone"] = partial(_encode, model, images)
        timings = take_turns(ways, settings.rounds or _ROUNDS, advance, settings.device)
    rows: list[Row] = []
    for source in sources:
        busy = Spread.of(shares[source][1:])  # the first is for warming up
        rows.append(
            {
                "images": source,
                "ms": 1000 * timings.of(source).median / count,
                "in the encoder (%)": 100 * busy.median,
                "±": 100 * busy.margin,
                "speed of the encoder alone (%)": 100 * _BATCHES * timings.ratio("alone", source).median,
            }
        )
    note = f"{model.name}, {_BATCHES} batches of {settings.batch_size} images, {torch.get_num_threads()} thread(s)."
    return Report(rows, [note])


def _busy_share(model: ImageModel, stream: Stream) -> float:
    """The share of the time from the second batch on, when reading ahead has begun, that the encoder works."""
    busy, start = 0.0, time.perf_counter()
    for place, (images, _) in enumerate(stream):
        if place == 1:
            busy, start = 0.0, time.perf_counter()
        prepared = model.prepare(images)
        before = time.perf_counter()
        _encode(model, prepared)
        busy += time.perf_counter() - before
    return busy / (time.perf_counter() - start)


@torch.no_grad()
def _encode(model: ImageModel, prepared: Tensor) -> None:
    model.encode_image(prepared).cpu()  # a GPU returns before its work is done


def _array(count: int) -> ImageDataset:
    images = np.random.default_rng(0).integers(0, 256, (count, _ARRAY, _ARRAY, 3), dtype=np.uint8)
    return ImageDataset(images, np.zeros(count, np.int64), ("one", "other"))


def _files(folder: Path, count: int) -> ImageFiles:
    """Soft shapes with some grain, so that files are as large as those of photographs."""
    rng = np.random.default_rng(0)
    paths = tuple(folder / f"{place}.jpg" for place in range(count))
    for path in paths:
        coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
        grain = rng.integers(0, 30, (_FILE, _FILE, 3))
        shapes = np.asarray(coarse.resize((_FILE, _FILE), Image.Resampling.BICUBIC)).astype(np.int64)
        Image.fromarray((shapes + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return ImageFiles(paths, np.zeros(count, np.int64), ("one", "other"))
