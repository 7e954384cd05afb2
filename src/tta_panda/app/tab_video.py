"""The tab of a camera or a video: frames predicted one by one, as the method adapts to them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from tta_panda.app.drawing import TILE, Tile, sheet, tiles
from tta_panda.app.handlers import NO_PROGRESS, sentences
from tta_panda.app.pictures import shared_classifier, split_names
from tta_panda.app.video import Frame, frames, predict_frame
from tta_panda.errors import InvalidInputError
from tta_panda.images import fit_picture
from tta_panda.methods import create_method, list_methods
from tta_panda.methods.base import Method
from tta_panda.prediction.predict import Prediction

KEPT = 30
"""Frames that stay on the page."""


def add_video_tab(models: Sequence[str], class_names: Sequence[str]) -> None:
    """Fields, a video and a camera, and what happens when they are used; `class_names` are the first to look for."""
    camera_method = gr.State(time_to_live=3600)
    with gr.Row():
        classes = gr.Textbox(", ".join(class_names), label="Classes", min_width=240)
        model = gr.Dropdown(list(models), label="Model", min_width=140)
        method = gr.Dropdown(list_methods(), value="clip+panda", label="Method", min_width=140)
        every = gr.Slider(1, 60, value=10, step=1, label="Use one frame of", min_width=140)
    with gr.Row():
        with gr.Column(min_width=300):
            video = gr.File(label="Video", file_types=["video"], height=240)
            with gr.Row():
                start = gr.Button("Predict the video", variant="primary")
                stop = gr.Button("Stop")
            shown = gr.HTML(elem_id="frames")
        with gr.Column(min_width=300):
            camera = gr.Image(label="Camera", sources=["webcam"], streaming=True, type="numpy", height=240)
            said = gr.HTML(elem_id="camera-says")

    playing = start.click(_play, [video, classes, model, method, every], shown)
    stop.click(None, cancels=[playing])
    camera.stream(
        _look, [camera_method, camera, classes, model, method], [camera_method, said],
        stream_every=0.5, show_progress="hidden", trigger_mode="once",
    )  # fmt: skip
    for change in (classes.input, model.input, method.input):
        change(lambda: None, None, camera_method, **NO_PROGRESS)


def _method(classes: str, model: str, method: str) -> Method:
    return create_method(method, shared_classifier(model, tuple(split_names(classes))))


@sentences
def _play(
    video: str | None,
    classes: str,
    model: str,
    method: str,
    every: int,
    progress: gr.Progress = gr.Progress(),  # noqa: B008  (how gradio finds out that a bar is wanted)
) -> Iterator[str]:
    if video is None:
        raise InvalidInputError("Upload a video first.")
    made = _method(classes, model, method)
    kept: deque[tuple[Frame, Tile]] = deque(maxlen=KEPT)
    for share, frame in frames(Path(video), every):
        progress(share, desc="Predicting")
        prediction = predict_frame(made, frame)
        thumbnail = np.asarray(fit_picture(Image.fromarray(frame), TILE))
        kept.appendleft((thumbnail, Tile(_sentence(prediction), prediction.changed)))
        pictures, said = zip(*kept, strict=True)
        yield sheet("frames", np.stack(pictures)) + tiles("frames", said)


@sentences
def _look(made: Method | None, frame: Frame | None, *names: str) -> tuple[Any, Any]:
    """What the method says of the picture that the camera shows now."""
    if frame is None:
        return gr.skip(), gr.skip()
    made = made or _method(*names)
    return made, f"<h2>{escape(_sentence(predict_frame(made, frame)))}</h2>"


def _sentence(prediction: Prediction) -> str:
    plain = f" (plain: {prediction.plain_predicted})" if prediction.changed else ""
    return f"{prediction.predicted} {prediction.probability:.0%}{plain}"
