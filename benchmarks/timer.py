"""Time alternatives in interleaved rounds, so that a machine that slows down affects all of them alike."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch

from tta_panda.models.devices import clock

MIN_ROUNDS, MAX_ROUNDS = 10, 300

Work = Callable[[], object]


class Estimate(NamedTuple):
    """A median with its 95 % margin, as in the notch of a box plot."""

    median: float
    margin: float

    @classmethod
    def of(cls, values: list[float]) -> Estimate:
        lower, median, upper = np.percentile(values, [25, 50, 75])
        return cls(float(median), 1.58 * float(upper - lower) / math.sqrt(len(values)))

    def __str__(self) -> str:
        return f"{self.median:.2f} ± {self.margin:.2f}"


class Timings(dict[str, list[float]]):
    """Seconds of each alternative, by round."""

    def milliseconds(self, way: str) -> float:
        """Median time of an alternative."""
        return 1000 * Estimate.of(self[way]).median

    def ratio(self, way: str, other: str) -> Estimate:
        """Time of `way` divided by that of `other`, within rounds."""
        return Estimate.of([a / b for a, b in zip(self[way], self[other], strict=True)])


def interleave(
    ways: Mapping[str, Work],
    *,
    before: Mapping[str, Work] | None = None,
    device: torch.device | str = "cpu",
    rounds: int | None = None,
    precision: float = 0.01,
    cpu_time: bool = False,
) -> Timings:
    """Call every alternative once to warm up, then once per round, in a new random order each time.

    Args:
        ways: functions to time, by name. Ratios to the first one decide when to stop.
        before: functions to call, untimed, before each call of the function of the same name.
        device: device to synchronise before reading the clock.
        rounds: number of rounds; by default, until all margins are at most `precision`, within 10 to 300 rounds.
        cpu_time: measure the CPU time of this process, for machines with other work.
    """
    timings, order = Timings({way: [] for way in ways}), random.Random(0)
    baseline = next(iter(ways))
    for turn in range((rounds or MAX_ROUNDS) + 1):
        for way in order.sample(list(ways), len(ways)):
            if before and way in before:
                before[way]()
            start = _now(device, cpu_time)
            ways[way]()
            if turn:
                timings[way].append(_now(device, cpu_time) - start)
        margins = (timings.ratio(way, baseline).margin for way in ways) if turn >= MIN_ROUNDS else ()
        if rounds is None and turn >= MIN_ROUNDS and max(margins) <= precision:
            break
    return timings


def _now(device: torch.device | str, cpu_time: bool) -> float:
    now = clock(torch.device(device))
    return time.process_time() if cpu_time else now
