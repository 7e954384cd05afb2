"""The tab of a stream: played batch by batch, while corruption and order may change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from tta_panda.app.handlers import NO_PROGRESS, sentences
from tta_panda.app.pictures import DOMAINS, embedded_data, shared_classifier
from tta_panda.app.shown import stream_charts, stream_classes
from tta_panda.app.stream import ORDERS, PLAIN, Player, Setting
from tta_panda.data import load_data
from tta_panda.evaluation.config import ALL
from tta_panda.methods import list_methods

START = "<p>Press Play, or Step for a single batch. Corruption and order may be changed while the stream plays.</p>"
SECONDS_PER_STEP = 0.3


def add_stream_tab(models: Sequence[str]) -> None:
    """Fields, buttons and charts, and what happens when they are used."""
    playing = gr.State(time_to_live=3600)
    timer = gr.Timer(SECONDS_PER_STEP, active=False)
    with gr.Row():
        with gr.Column(scale=1, min_width=260):
            corruption = gr.Dropdown([*DOMAINS, ALL], value="fog", label="Corruption")
            severity = gr.Slider(1, 5, value=5, step=1, label="Severity")
            order = gr.Dropdown(list(ORDERS), value="continual", label="Order", allow_custom_value=True)
            batch_size = gr.Slider(1, 200, value=50, step=1, label="Pictures in a batch")
            second = gr.Dropdown([n for n in list_methods() if n != PLAIN], value="tent+panda", label="Second method")
            data = gr.Dropdown(embedded_data(), label="Data set")
            model = gr.Dropdown(list(models), label="Model")
        with gr.Column(scale=3, min_width=320):
            with gr.Row():
                play = gr.Button("Play", variant="primary", min_width=70)
                pause = gr.Button("Pause", min_width=70)
                step = gr.Button("Step", min_width=70)
                reset = gr.Button("Reset", min_width=70)
            charts = gr.HTML(START, elem_id="charts")
            counts = gr.HTML(elem_id="counts")

    inputs, outputs = [playing, model, second, data, corruption, severity, order, batch_size], [playing, charts, counts]
    step.click(_step, inputs, outputs, show_progress="hidden")
    ticking = timer.tick(_step, inputs, outputs, show_progress="hidden", trigger_mode="once")
    play.click(lambda: gr.Timer(active=True), None, timer, **NO_PROGRESS)
    for stop in (pause.click, reset.click, ticking.failure):
        stop(lambda: gr.Timer(active=False), None, timer, **NO_PROGRESS)
    reset.click(lambda: (None, START, ""), None, outputs, **NO_PROGRESS)


Playing = tuple[tuple[str, str, str], Player]
"""A stream, and the names of the model, second method and data that it was begun with."""


@sentences
def _step(playing: Playing | None, model: str, second: str, data: str, *changing: Any) -> tuple[Playing, str, str]:
    """The next batch; of a new stream where there is none, or where it was begun with others."""
    begun_with = (model, second, data)
    if playing is None or playing[0] != begun_with:
        playing = begun_with, Player(shared_classifier(model, load_data(data).class_names), second)
    player = playing[1]
    player.step(Setting(data, *changing))
    return playing, stream_charts(player), stream_classes(player)
