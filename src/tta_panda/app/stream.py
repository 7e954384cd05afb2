"""Streams: embedded data played batch by batch while the corruption may change, and frames of a video or a camera."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tta_panda.app.batch import LABELS, metric_cells
from tta_panda.app.drawing import Series, class_table, table
from tta_panda.data import CLEAN, load_data
from tta_panda.data.corruptions import expand_corruptions
from tta_panda.data.order import Order
from tta_panda.data.stream import Stream
from tta_panda.errors import DataError
from tta_panda.evaluation.metrics import Scores, StreamMetrics
from tta_panda.methods import create_method
from tta_panda.methods.base import Method, adapt_beside_plain
from tta_panda.models import Classifier
from tta_panda.prediction.predict import Prediction, predict
from tta_panda.reporting.cells import ACCURACY, BIAS, Cell
from tta_panda.reporting.figures import COLOURS, Line, LineFigure, Panel, draw, to_svg

PLAIN, PANDA = "clip", "clip+panda"
ORDERS = (
    "reset", "continual", "gradual", "mixed", "correlated:0.1", "continual+correlated:0.1", "imbalanced:inf",
    "label_shift:0.1",
)  # fmt: skip
WINDOW = 5
"""Batches that the curves average over: few, so that they follow a change."""
MAX_CHANGES = 6
"""Domains that a chart names: the names of more would cover each other."""

Frame = NDArray[np.uint8]  # (H, W, 3)


class Setting(NamedTuple):
    """What the next batches of a stream are."""

    data: str
    corruption: str = CLEAN
    """`all` goes through the fifteen of the benchmark."""
    severity: int = 5
    order: str = "continual"
    batch_size: int = 50


class Step(NamedTuple):
    """The end of a batch, with metrics of the last few batches by method."""

    pictures: int
    domain: str
    curves: dict[str, dict[str, float]]
    """By metric, then by method; beta only of methods that have one."""


class Player:
    """The plain classifier, Panda and a second method on the same stream.

    Args:
        classifier: what they adapt.
        second: name of the second method.
    """

    def __init__(self, classifier: Classifier, second: str):
        self._lock = threading.Lock()
        self.class_names = classifier.class_names
        self.methods = {name: create_method(name, classifier) for name in (PANDA, second)}
        self.names = (PLAIN, *self.methods)
        self.steps: list[Step] = []
        self.totals = self._new_metrics()
        self._recent: deque[tuple[dict[str, Tensor], Tensor]] = deque(maxlen=WINDOW)
        self._setting: Setting | None = None

    def _new_metrics(self) -> dict[str, StreamMetrics]:
        return {name: StreamMetrics(len(self.class_names)) for name in self.names}

    def step(self, setting: Setting) -> Step:
        """Play the next batch; with a new domain, methods continue or are reset, as the order says."""
        with self._lock:
            if setting != self._setting:
                self._setting, self._batches = None, self._play(setting)
            images, labels, domains = next(self._batches)
            self._setting = setting  # not before: one that cannot be played is refused each time
            logits: dict[str, Tensor] = {}
            logits[PANDA], logits[PLAIN] = adapt_beside_plain(self.methods[PANDA], images)
            logits |= {name: method.adapt(images) for name, method in self.methods.items() if name != PANDA}
            for name, metrics in self.totals.items():
                metrics.update(Scores.of(logits[name].cpu(), labels))
            self._recent.append((logits, labels))
            recent = self.window()
            curves = {
                ACCURACY.title: {name: 100 * metrics.accuracy for name, metrics in recent.items()},
                BIAS.title: {name: metrics.bias for name, metrics in recent.items()},
                "β": {name: each.beta for name, each in self.methods.items() if each.beta is not None},
            }
            self.steps.append(Step(self.totals[PLAIN].samples, domains[-1], curves))
            return self.steps[-1]

    def window(self) -> dict[str, StreamMetrics]:
        """Metrics of the last few batches, by method."""
        found = self._new_metrics()
        for logits, labels in self._recent:
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
                for method in self.methods.values():
                    method.reset()
                yield from Stream({name: visits}, batch_size, seed, order=joined)


def stream_charts(player: Player) -> str:
    """Accuracy, bias and beta on the way, with their latest values."""
    steps, latest = player.steps, player.steps[-1]
    changes = dict(_changes(steps)[-MAX_CHANGES:])
    panels = []
    for metric, values in latest.curves.items():
        lines = []
        for hue, name in enumerate(player.names):
            if name in values:
                cells = {float(step.pictures): Cell(step.curves[metric].get(name)) for step in steps}
                lines.append(Line(f"{name} {values[name]:.4g}", cells, hue, "curve"))
        y = metric if metric == "β" else f"{metric}, last batches"
        panels.append(Panel(f"{latest.pictures:,} pictures", y, lines, names=changes))
    return f'<div class="charts">{"".join(map(to_svg, draw(LineFigure("", panels))))}</div>'


def _changes(steps: Sequence[Step]) -> list[tuple[float, str]]:
    """Where each domain begins."""
    before: Sequence[Step | None] = [None, *steps[:-1]]
    return [
        (0.0 if last is None else last.pictures, step.domain.replace("_", " "))
        for last, step in zip(before, steps, strict=True)
        if last is None or last.domain != step.domain
    ]


def stream_classes(player: Player) -> str:
    """Metrics of the methods on the whole stream, and the classes of the last batches."""
    rows = {name: metric_cells(metrics) for name, metrics in player.totals.items()}
    whole = table(f"All {player.steps[-1].pictures:,} pictures", [ACCURACY.short, BIAS.title], rows)
    recent = player.window()
    columns = {
        name: Series(metrics.predicted.tolist(), colour)
        for (name, metrics), colour in zip(recent.items(), COLOURS, strict=False)
    }
    columns[LABELS] = Series(next(iter(recent.values())).labels.tolist())
    return whole + class_table("Predicted in the last batches", player.class_names, columns)


def frames(path: Path, every: int) -> Iterator[tuple[float, Frame]]:
    """Every n-th frame of a video file, with its position as a share of the video."""
    capture = cv2.VideoCapture(str(path))
    try:
        if not capture.isOpened():
            raise DataError(f"Cannot read the video {path.name}: it is not one, or its format is not known.")
        total = max(1.0, capture.get(cv2.CAP_PROP_FRAME_COUNT))
        index = 0
        while capture.grab():
            if index % every == 0 and (frame := capture.retrieve()[1]) is not None:
                yield min(1.0, index / total), cv2.cvtColor(frame, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)
            index += 1
    finally:
        capture.release()


def predict_frame(method: Method, frame: Frame) -> Prediction:
    """The prediction of a method for the next frame of its stream."""
    [prediction] = predict(method, [frame], batch_size=1)
    return prediction
