"""How time and memory of a batch grow with the numbers of images, classes, negatives and views."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from tta_panda.errors import InvalidInputError
from tta_panda.evaluation.memory import PeakMemory
from tta_panda.methods import create_method
from tta_panda.models import load_model
from tta_panda.results.figure import Line, LineFigure, Panel
from tta_panda.speed.measure import Advance, Report, Row, Settings, Spread, take_turns
from tta_panda.speed.workload import draw_pictures, make_classes, standing

_ROUNDS = 3
_DEBIASED = ("clip+panda", "tent+panda", "dmn+panda", "tda+panda")


class Point(NamedTuple):
    """One batch: how many images, of how many classes, and options of the method."""

    images: int
    classes: int
    options: dict[str, Any] = {}  # noqa: RUF012


class Axis(NamedTuple):
    """A number that grows while the others stay the same, and the methods that it is measured for."""

    name: str
    points: dict[int, Point]
    methods: Sequence[str]


class Curve(NamedTuple):
    """One method along an axis: seconds and bytes of a batch at each value."""

    axis: Axis
    method: str
    seconds: list[Spread]
    memory: list[int]

    @property
    def row(self) -> Row:
        milliseconds = [1000 * each.median for each in self.seconds]
        megabytes = [each / 2**20 for each in self.memory]
        return {
            "over": self.axis.name,
            "method": self.method,
            "at": list(self.axis.points),
            "ms": [round(each, 1) for each in milliseconds],
            "time ~": self._exponent(milliseconds),
            "MB": [round(each, 1) for each in megabytes],
            "memory ~": self._exponent(megabytes),
        }

    def _exponent(self, heights: list[float]) -> float:
        """The slope on logarithmic axes over the upper half of the values: 1 where twice as many cost twice as much."""
        upper = slice(len(heights) // 2, None)
        tall = np.maximum(heights[upper], 1e-3)
        return float(np.polyfit(np.log(list(self.axis.points)[upper]), np.log(tall), 1)[0])


def measure_growth(settings: Settings, advance: Advance) -> Report:
    """A row per axis and method: time and added memory at every value, and the exponents by which they grow."""
    axes = _axes(settings)
    if not axes:
        known = sorted({name for axis in _axes(Settings()) for name in axis.methods})
        raise InvalidInputError(f"Growth is measured for {', '.join(known)}; got {', '.join(settings.methods)}.")
    model = load_model(settings.model, settings.device)
    pictures = draw_pictures(max(point.images for axis in axes for point in axis.points.values()), model.image_size)
    classes = functools.cache(partial(make_classes, model))
    step = 1 / sum(len(axis.methods) for axis in axes)

    def measure(axis: Axis, name: str) -> Curve:
        ways: dict[str, Callable[[], object]] = {}
        before: dict[str, Callable[[], object]] = {}
        for value, point in axis.points.items():
            method, images = create_method(name, classes(point.classes), **point.options), pictures[: point.images]
            before[str(value)] = standing(method, images)
            ways[str(value)] = partial(method.adapt, images)
        memory = [_added_memory(work, model.device) for work in ways.values()]
        rounds = settings.rounds or _ROUNDS
        timings = take_turns(ways, rounds, lambda share: advance(share * step), settings.device, before)
        timings = timings.by(settings.clock)
        return Curve(axis, name, [timings.of(way) for way in ways], memory)

    curves = {axis.name: [measure(axis, name) for name in axis.methods] for axis in axes}
    rows = [curve.row for several in curves.values() for curve in several]
    panels = [panel for name, several in curves.items() for panel in _panels(name, several)]
    notes = [
        f"{settings.model}: {settings.batch_size} images and {settings.classes} classes where nothing else is said "
        f"(views: a tenth of the images), {torch.get_num_threads()} thread(s), medians by {settings.clock}.",
        "~: exponent over the upper half of the values. MB: peak memory of a batch above what was there before it.",
    ]
    return Report(rows, notes, [LineFigure("Time and memory of a batch", panels, name="growth")])


def _axes(settings: Settings) -> list[Axis]:
    """All that have a method that was asked for."""
    size, classes = settings.batch_size, settings.classes

    def of_batch(*percent: int) -> list[int]:
        return sorted({-(-size * each // 100) for each in percent})

    axes = [
        Axis("images", {count: Point(count, classes) for count in of_batch(1, 10, 50, 100, 200, 400)}, _DEBIASED),
        Axis("classes", {count: Point(size, count) for count in (10, 100, 1000, 3000, 10_000)}, _DEBIASED),
        Axis(
            "negatives",
            {n: Point(size, classes, {"ratio": n / size}) for n in of_batch(5, 10, 20, 50, 100)},
            _DEBIASED[:2],
        ),
        Axis(
            "views",
            {count: Point(-(-size // 10), classes, {"views": count}) for count in (2, 4, 8, 16, 32, 64)},
            ("zero", "tps", "tpt"),
        ),
    ]
    asked = [axis._replace(methods=[n for n in axis.methods if n in (settings.methods or [n])]) for axis in axes]
    return [axis for axis in asked if axis.methods]


def _added_memory(work: Callable[[], object], device: torch.device) -> int:
    """Bytes that the work needs at most beside what is there before; zero where the system does not say."""
    memory = PeakMemory(device)
    before = memory.read() or 0
    work()
    return (memory.read() or 0) - before


def _panels(name: str, curves: Sequence[Curve]) -> list[Panel]:
    times, memories = [], []
    for hue, curve in enumerate(curves):
        medians, margins = ([1000 * value for value in values] for values in zip(*curve.seconds, strict=True))
        values = list(curve.axis.points)
        times.append(Line(curve.method, values, medians, margins, hue))
        memories.append(Line(curve.method, values, [each / 2**20 for each in curve.memory], [0.0] * len(values), hue))
    return [Panel(name, "ms", times, log_x=True, log_y=True), Panel(name, "MB", memories, log_x=True, log_y=True)]
