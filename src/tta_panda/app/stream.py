"""The tab for streams: play embedded data batch by batch, and change corruption and order on the way."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import gradio as gr
from torch import Tensor

from tta_panda.app.common import (
    DOMAINS,
    LABELS,
    MINI,
    NO_PROGRESS,
    add_method_fields,
    embedded_data,
    errors_shown,
    method_name,
    metric_cells,
    quantity,
    shared_classifier,
)
from tta_panda.app.drawing import Series, class_table, table
from tta_panda.data import CLEAN, load_data
from tta_panda.data.corruptions import expand_corruptions
from tta_panda.data.order import Order
from tta_panda.data.stream import Stream
from tta_panda.evaluation.config import ALL
from tta_panda.evaluation.metrics import Scores, StreamMetrics
from tta_panda.methods import create_method
from tta_panda.methods.base import adapt_beside_plain
from tta_panda.models import Classifier
from tta_panda.reporting.cells import ACCURACY, BIAS, Cell
from tta_panda.reporting.figures import COLOURS, Line, LineFigure, Panel, draw, to_svg

PLAIN, PANDA = "clip", "clip+panda"
ORDERS = (
    "reset", "continual", "gradual", "mixed", "correlated:0.1", "continual+correlated:0.1", "imbalanced:inf",
    "label_shift:0.1",
)  # fmt: skip
WINDOW = 5
"""Batches that the curves average over: few, so that the curves follow changes."""
MAX_CHANGES = 6
"""Domains named in a chart: the names of more would overlap."""

START = "<p>Press Play, or Step for a single batch. Corruption and order may be changed while the stream plays.</p>"
SECONDS_PER_STEP = 0.3


class Setting(NamedTuple):
    """What the next batches of a stream consist of."""

    data: str
    corruption: str = CLEAN
    """A name, or `all` for the fifteen of the benchmark in turn."""
    severity: int = 5
    order: str = "continual"
    batch_size: int = 50


class Step(NamedTuple):
    """A point of the curves, after a batch."""

    pictures: int
    domain: str
    curves: dict[str, dict[str, float]]
    """Metrics over the last few batches, by metric and method; beta of methods that have one."""


class Player:
    """The unadapted model, Panda and a second method on the same stream.

    Args:
        classifier: the classifier to adapt.
        second: name of the second method.
    """

    def __init__(self, classifier: Classifier, second: str):
        self._lock = threading.Lock()
        self.class_names = classifier.class_names
        self.methods = {name: create_method(name, classifier) for name in (PANDA, second) if name != PLAIN}
        self.names = (PLAIN, *self.methods)
        self.steps: list[Step] = []
        self.totals = self._new_metrics()
        self._recent: deque[tuple[dict[str, Tensor], Tensor]] = deque(maxlen=WINDOW)
        self._setting: Setting | None = None

    def _new_metrics(self) -> dict[str, StreamMetrics]:
        return {name: StreamMetrics(len(self.class_names)) for name in self.names}

    def step(self, setting: Setting) -> Step:
        """Play the next batch; at a new domain, methods continue or are reset, depending on the order."""
        with self._lock:
            if setting != self._setting:
                self._setting, self._batches = None, self._play(setting)
            images, labels, domains = next(self._batches)
            self._setting = setting  # only now, so that a setting that cannot be played fails every time
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
        """Metrics over the last few batches, by method."""
        found = self._new_metrics()
        for logits, labels in self._recent:
            for name, metrics in found.items():
                metrics.update(Scores.of(logits[name].cpu(), labels))
        return found

    def _play(self, setting: Setting) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
        """Batches without end: after all domains, they are repeated in another order."""
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


def render_charts(player: Player) -> str:
    """Render accuracy, bias and beta as curves, with their latest values."""
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
        panels.append(Panel(quantity(latest.pictures, "picture"), y, lines, names=changes))
    return f'<div class="charts">{"".join(map(to_svg, draw(LineFigure("", panels))))}</div>'


def _changes(steps: Sequence[Step]) -> list[tuple[float, str]]:
    """Position and name of each domain."""
    before: Sequence[Step | None] = [None, *steps[:-1]]
    return [
        (0.0 if last is None else last.pictures, step.domain.replace("_", " "))
        for last, step in zip(before, steps, strict=True)
        if last is None or last.domain != step.domain
    ]


def render_classes(player: Player) -> str:
    """Render the metrics of the methods on the whole stream, and the classes of the last batches."""
    rows = {name: metric_cells(metrics) for name, metrics in player.totals.items()}
    whole = table(f"All {quantity(player.steps[-1].pictures, 'picture')}", [ACCURACY.short, BIAS.title], rows)
    recent = player.window()
    columns = {
        name: Series(metrics.predicted.tolist(), colour)
        for (name, metrics), colour in zip(recent.items(), COLOURS, strict=False)
    }
    columns[LABELS] = Series(next(iter(recent.values())).labels.tolist())
    return whole + class_table("Predicted in the last batches", player.class_names, columns)


def add_stream_tab(models: Sequence[str]) -> None:
    """Build the tab for streams."""
    playing = gr.State(time_to_live=3600)
    timer = gr.Timer(SECONDS_PER_STEP, active=False)
    with gr.Row():
        with gr.Column(scale=1, min_width=260):
            corruption = gr.Dropdown([*DOMAINS, (ALL, ALL)], value="fog", label="Corruption")
            severity = gr.Slider(1, 5, value=5, step=1, label="Severity")
            order = gr.Dropdown(list(ORDERS), value="continual", label="Order", allow_custom_value=True)
            batch_size = gr.Slider(1, 200, value=50, step=1, label="Batch size")
            second = add_method_fields("Second method", "tent+panda")
            data = gr.Dropdown(embedded_data(), label="Data set")
            model = gr.Dropdown(list(models), value=MINI, label="Model")
        with gr.Column(scale=3, min_width=320):
            with gr.Row():
                play = gr.Button("Play", variant="primary", min_width=70)
                pause = gr.Button("Pause", min_width=70)
                step = gr.Button("Step", min_width=70)
                reset = gr.Button("Reset", min_width=70)
            charts = gr.HTML(START, elem_id="charts")
            counts = gr.HTML(elem_id="counts")

    inputs = [playing, model, *second, data, corruption, severity, order, batch_size]
    outputs = [playing, charts, counts]
    step.click(_step, inputs, outputs, show_progress="hidden")
    ticking = timer.tick(_step, inputs, outputs, show_progress="hidden", trigger_mode="once")
    play.click(lambda: gr.Timer(active=True), None, timer, **NO_PROGRESS)
    for stop in (pause.click, reset.click, ticking.failure):
        stop(lambda: gr.Timer(active=False), None, timer, **NO_PROGRESS)
    reset.click(lambda: (None, START, ""), None, outputs, **NO_PROGRESS)


Playing = tuple[tuple[str, str, str], Player]
"""The model, second method and data that a stream was started with, and its player."""


@errors_shown()
def _step(
    playing: Playing | None, model: str, base: str, debiasing: str, data: str, *changing: Any
) -> tuple[Playing, str, str]:
    """Play the next batch, of a new stream if there is none or if model, second method or data have changed."""
    second = method_name(base, debiasing)
    started_with = (model, second, data)
    if playing is None or playing[0] != started_with:
        playing = started_with, Player(shared_classifier(model, load_data(data).class_names), second)
    player = playing[1]
    player.step(Setting(data, *changing))
    return playing, render_charts(player), render_classes(player)
