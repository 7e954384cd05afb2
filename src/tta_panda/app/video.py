"""The tab for cameras and videos: predict frames one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import cv2
import gradio as gr
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tta_panda.app.common import (
    NO_PROGRESS,
    add_method_fields,
    errors_shown,
    method_name,
    shared_classifier,
    split_names,
)
from tta_panda.app.drawing import TILE, sheet, tiles
from tta_panda.errors import DataError, InvalidInputError
from tta_panda.images import fit_picture
from tta_panda.methods import create_method
from tta_panda.methods.base import Method
from tta_panda.prediction import DEFAULT_METHOD
from tta_panda.prediction.predict import Prediction, predict_stream

Frame = NDArray[np.uint8]  # (H, W, 3)

KEPT = 30
"""Number of frames shown on the page."""


def frames(path: Path, every: int) -> Iterator[tuple[float, Frame]]:
    """Yield every n-th frame of a video file, with its position as a fraction of the video."""
    capture = cv2.VideoCapture(str(path))
    try:
        if not capture.isOpened():
            raise DataError(f"Cannot read the video {path.name}: it is not a video, or its format is not supported.")
        total = max(1.0, capture.get(cv2.CAP_PROP_FRAME_COUNT))
        index = 0
        while capture.grab():
            if index % every == 0 and (frame := capture.retrieve()[1]) is not None:
                yield min(1.0, index / total), cv2.cvtColor(frame, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)
            index += 1
    finally:
        capture.release()


def predict_frame(method: Method, frame: Frame) -> Prediction:
    """Predict the next frame of a stream."""
    [prediction] = predict_stream(method, [frame], batch_size=1)
    return prediction


def add_video_tab(models: Sequence[str]) -> None:
    """Build the tab for cameras and videos."""
    camera_method = gr.State(time_to_live=3600)
    with gr.Row():
        classes = gr.Textbox("", label="Classes", placeholder="cat, dog, bird", min_width=240)
        model = gr.Dropdown(list(models), label="Model", min_width=140)
        method = add_method_fields("Method", DEFAULT_METHOD)
        every = gr.Slider(1, 60, value=10, step=1, label="Use every n-th frame", min_width=140)
    with gr.Row():
        with gr.Column(min_width=300):
            video = gr.File(label="Video", file_types=["video"], height=240)
            with gr.Row():
                start = gr.Button("Predict the video", variant="primary")
                stop = gr.Button("Stop")
            shown = gr.HTML(elem_id="frames")
        with gr.Column(min_width=300):
            camera = gr.Image(label="Camera", sources=["webcam"], streaming=True, type="numpy", height=240)
            answer = gr.HTML(elem_id="camera-says")

    playing = start.click(_predict_video, [video, classes, model, *method, every], shown)
    stop.click(None, cancels=[playing])
    camera.stream(
        _predict_camera, [camera_method, camera, classes, model, *method], [camera_method, answer],
        stream_every=0.5, show_progress="hidden", trigger_mode="once",
    )  # fmt: skip
    for change in (classes.input, model.input, *(field.input for field in method)):
        change(lambda: None, None, camera_method, **NO_PROGRESS)


def _method(classes: str, model: str, base: str, debiasing: str) -> Method:
    names = split_names(classes)
    if len(names) < 2:
        raise InvalidInputError("Enter two or more names under Classes, such as: cat, dog, bird.")
    return create_method(method_name(base, debiasing), shared_classifier(model, tuple(names)))


def _predict_video(
    video: str | None,
    classes: str,
    model: str,
    method: str,
    debiasing: str,
    every: int,
    progress: gr.Progress = gr.Progress(),  # noqa: B008  (how gradio finds out that a bar is wanted)
) -> Iterator[str]:
    with errors_shown():
        if video is None:
            raise InvalidInputError("Upload a video first.")
        made = _method(classes, model, method, debiasing)
        kept: deque[tuple[Frame, tuple[str, bool]]] = deque(maxlen=KEPT)
        for share, frame in frames(Path(video), every):
            progress(share, desc="Predicting")
            prediction = predict_frame(made, frame)
            thumbnail = np.asarray(fit_picture(Image.fromarray(frame), TILE))
            kept.appendleft((thumbnail, (_sentence(prediction), prediction.changed)))
            pictures, captions = zip(*kept, strict=True)
            yield sheet("frames", np.stack(pictures)) + tiles("frames", captions)


@errors_shown()
def _predict_camera(made: Method | None, frame: Frame | None, *names: str) -> tuple[Any, Any]:
    """Predict the current frame of the camera."""
    if frame is None:
        return gr.skip(), gr.skip()
    made = made or _method(*names)
    return made, f"<h2>{escape(_sentence(predict_frame(made, frame)))}</h2>"


def _sentence(prediction: Prediction) -> str:
    plain = f" (unadapted: {prediction.plain_predicted})" if prediction.changed else ""
    return f"{prediction.predicted} {prediction.probability:.0%}{plain}"
