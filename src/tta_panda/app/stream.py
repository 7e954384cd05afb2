"""A stream played batch by batch, which the corruption may change on the way."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from tta_panda.data import CLEAN, load_data
from tta_panda.data.corruptions import expand_corruptions
from tta_panda.data.order import Order
from tta_panda.data.stream import Stream
from tta_panda.evaluation.metrics import Scores, StreamMetrics
from tta_panda.methods import create_method
from tta_panda.methods.locking import one_at_a_time
from tta_panda.models import Classifier

PLAIN, PANDA = "clip", "clip+panda"
ORDERS = (
    "reset", "continual", "gradual", "mixed", "correlated:0.1", "continual+correlated:0.1", "imbalanced:inf",
    "label_shift:0.1",
)  # fmt: skip
WINDOW = 5
"""Batches that the curves average over: few, so that they follow a change."""


class Setting(NamedTuple):
    """What comes next in a stream."""

    data: str
    corruption: str = CLEAN
    """`all` goes through the fifteen of the benchmark."""
    severity: int = 5
    order: str = "continual"
    batch_size: int = 50


class Step(NamedTuple):
    """Where a stream stands after a batch; numbers are those of the last few batches, by method."""

    pictures: int
    domain: str
    accuracy: dict[str, float]
    bias: dict[str, float]
    beta: dict[str, float]
    """Of methods that have one."""


class Player:
    """The plain classifier, Panda and a second method on the same stream.

    Args:
        classifier: what they adapt.
        second: name of the second method.
    """

    def __init__(self, classifier: Classifier, second: str):
        self._lock = threading.RLock()
        self.class_names = classifier.class_names
        self.methods = {name: create_method(name, classifier) for name in (PANDA, second)}
        self.names = (PLAIN, *self.methods)
        self.reset()

    @one_at_a_time
    def reset(self) -> None:
        """Begin anew: methods forget the stream, and curves start at zero."""
        self._start_afresh()
        self.steps: list[Step] = []
        self.totals = self._new_metrics()
        self.recent: deque[tuple[dict[str, Tensor], Tensor]] = deque(maxlen=WINDOW)
        self._setting: Setting | None = None

    def _start_afresh(self) -> None:
        for method in self.methods.values():
            method.reset()

    def _new_metrics(self) -> dict[str, StreamMetrics]:
        return {name: StreamMetrics(len(self.class_names)) for name in self.names}

    @one_at_a_time
    def step(self, setting: Setting) -> Step:
        """Play the next batch; methods go on, or start afresh with a new domain, as the order says."""
        if setting != self._setting:
            self._setting, self._batches = setting, self._play(setting)
        images, labels, domains = next(self._batches)
        logits: dict[str, Tensor] = {}
        logits[PANDA], logits[PLAIN] = self.methods[PANDA].adapt_beside_plain(images)
        logits |= {name: method.adapt(images) for name, method in self.methods.items() if name != PANDA}
        for name, metrics in self.totals.items():
            metrics.update(Scores.of(logits[name].cpu(), labels))
        self.recent.append((logits, labels))
        recent = self.window()
        self.steps.append(
            Step(
                self.totals[PLAIN].samples,
                domains[-1],
                {name: metrics.accuracy for name, metrics in recent.items()},
                {name: metrics.bias for name, metrics in recent.items()},
                {name: method.beta for name, method in self.methods.items() if method.beta is not None},
            )
        )
        return self.steps[-1]

    def window(self) -> dict[str, StreamMetrics]:
        """Metrics of the last few batches, by method."""
        found = self._new_metrics()
        for logits, labels in self.recent:
            for name, metrics in found.items():
                metrics.update(Scores.of(logits[name].cpu(), labels))
        return found

    def _play(self, setting: Setting) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
        """Batches without end: each time that all domains have been seen, they are seen in another order."""
        data, corruption, severity, order, batch_size = setting
        names = (CLEAN,) if corruption == CLEAN else expand_corruptions([corruption])
        parsed = Order.parse(order)
        domains = {name: [load_data(data, name, each) for each in parsed.severities(severity)] for name in names}
        joined = str(replace(parsed, domains="continual"))
        for seed in itertools.count():
            if parsed.joins_domains:
                yield from Stream(domains, batch_size, seed, order=order)
                continue
            for name, visits in domains.items():
                self._start_afresh()
                yield from Stream({name: visits}, batch_size, seed, order=joined)
