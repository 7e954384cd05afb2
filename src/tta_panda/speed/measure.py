"""Times of several ways, taken in turns, so that a machine that slows down slows all of them."""

from __future__ import annotations

import math
import operator
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from tta_panda.models.devices import clock
from tta_panda.results.figure import LineFigure

Advance = Callable[[float], None]
"""Called with the share of the work that was done."""

Row = dict[str, Any]

Clock = Literal["time", "processor time"]
"""What passes for everybody, or what this process alone uses of the processor."""


@dataclass(frozen=True)
class Settings:
    """What is measured, as far as a topic asks for it."""

    model: str = "mini"
    device: str = "cpu"
    methods: tuple[str, ...] = ()
    """All where none is named."""
    batch_size: int = 100
    classes: int = 10
    views: int = 64
    image_size: int = 224
    images: int = 20_000
    """Length of a stream that is followed from end to end."""
    rounds: int | None = None
    """How often each way is timed; by default what the topic needs to resolve a few percent."""
    clock: Clock = "time"
    """What topics about methods compare."""


class Report(NamedTuple):
    """What came out: a table, sentences about it, and figures."""

    rows: list[Row]
    notes: list[str]
    figures: Sequence[LineFigure] = ()


class Spread(NamedTuple):
    """A median, and how far that of another run may lie from it."""

    median: float
    margin: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """With the notch of a box plot as margin: about a 95 % interval of the median."""
        lower, median, upper = np.percentile(values, [25, 50, 75])
        return cls(float(median), 1.58 * float(upper - lower) / math.sqrt(len(values)))


@dataclass
class Timings:
    """Of each way, the seconds of every round; and the processor's, whatever else is running."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)

    def by(self, clock: Clock) -> Timings:
        """The same with what this clock says in the place of seconds."""
        return Timings(self.seconds if clock == "time" else self.processor, self.processor)

    def of(self, way: str) -> Spread:
        return Spread.of(self.seconds[way])

    def ratio(self, way: str, other: str) -> Spread:
        """How many times as long `way` takes, round by round."""
        return Spread.of([a / b for a, b in zip(self.seconds[way], self.seconds[other], strict=True)])

    def combine(self, name: str, parts: Mapping[str, float]) -> None:
        """Enter a weighted sum of ways, round by round, as a way of its own."""
        for taken in (self.seconds, self.processor):
            rounds = zip(*(taken[way] for way in parts), strict=True)
            taken[name] = [sum(map(operator.mul, parts.values(), each)) for each in rounds]

    def processor_ratio(self, way: str, other: str) -> Spread:
        """The same by processor time."""
        return Spread.of([a / b for a, b in zip(self.processor[way], self.processor[other], strict=True)])


def take_turns(
    ways: Mapping[str, Callable[[], object]],
    rounds: int,
    advance: Advance = lambda _share: None,
    device: str = "cpu",
    before: Mapping[str, Callable[[], object]] = MappingProxyType({}),
    is_enough: Callable[[Timings], bool] = lambda _timings: False,
) -> Timings:
    """Call every way once to warm up, and then once in each round, in an order that is drawn anew.

    What a way leaves in the processor's caches matters to the next one, so none may always follow the same. `before`
    has what precedes some of the ways, each time, and is not timed. Rounds end early where what was measured so far
    `is_enough`.
    """
    timings = Timings({way: [] for way in ways}, {way: [] for way in ways})
    place, order = torch.device(device), random.Random(0)
    for turn in range(rounds + 1):
        for way in order.sample(list(ways), len(ways)):
            before.get(way, lambda: None)()
            start, processor_start = clock(place), time.process_time()
            ways[way]()
            seconds, processor = clock(place) - start, time.process_time() - processor_start
            if turn:
                timings.seconds[way].append(seconds)
                timings.processor[way].append(processor)
            advance(1 / len(ways) / (rounds + 1))
        if turn and is_enough(timings):
            advance((rounds - turn) / (rounds + 1))
            break
    return timings
