"""The four tabs: fields and outputs of each, and what happens when they are used."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from tta_panda.app import batch as batches
from tta_panda.app.batch import DOMAINS, EncodedBatch, embedded_data, frozen_methods, shared_classifier
from tta_panda.app.drawing import TILE, sheet, tiles
from tta_panda.app.records import as_grid, difference, read_comparisons_of, record_classes, records_of, tables_of
from tta_panda.app.stream import (
    ORDERS,
    PLAIN,
    Frame,
    Player,
    Setting,
    frames,
    predict_frame,
    stream_charts,
    stream_classes,
)
from tta_panda.data import load_data
from tta_panda.errors import DataError, InvalidInputError, TtaPandaError
from tta_panda.evaluation.config import ALL
from tta_panda.images import fit_picture
from tta_panda.methods import create_method, list_methods
from tta_panda.methods.base import Method
from tta_panda.prediction.predict import Prediction
from tta_panda.reporting.comparison import Comparison
from tta_panda.reporting.tables import Table

NO_PROGRESS: Any = {"queue": False, "show_progress": "hidden"}
"""For what takes milliseconds."""


@contextmanager
def errors_shown() -> Iterator[None]:
    """Show errors of this package on the page, as what they say."""
    try:
        yield
    except TtaPandaError as error:
        raise gr.Error(escape(str(error)), print_exception=False) from error


def _split_names(text: str) -> list[str]:
    """Class names that were written with commas between them."""
    return [name.strip() for name in text.split(",") if name.strip()]


# One batch

EMBEDDED, FOLDER, UPLOAD = "embedded data", "a folder", "uploaded files"
MAX_BETA = 2.0


def add_batch_tab(page: gr.Blocks, models: Sequence[str]) -> None:
    """Fields and pictures, and what happens when they are used; the first batch is shown at once."""
    batch = gr.State(time_to_live=3600)
    with gr.Row():
        with gr.Column(scale=1, min_width=260):
            source = gr.Radio([EMBEDDED, FOLDER, UPLOAD], value=EMBEDDED, label="Pictures")
            data = gr.Dropdown(embedded_data(), label="Data set")
            folder = gr.Textbox("", label="Folder", placeholder="~/photos", visible=False)
            files = gr.File(label="Picture files", file_count="multiple", visible=False, height=140)
            classes = gr.Textbox("", label="Classes", placeholder="cat, dog, bird", visible=False)
            corruption = gr.Dropdown(list(DOMAINS), value="fog", label="Corruption")
            severity = gr.Slider(1, 5, value=5, step=1, label="Severity")
            model = gr.Dropdown(list(models), label="Model")
            method = gr.Dropdown(frozen_methods(), label="Method")
            count = gr.Slider(10, 200, value=50, step=10, label="Pictures, at most")
            with gr.Row():
                show = gr.Button("Show", variant="primary", min_width=80)
                cancel = gr.Button("Cancel", min_width=80)
        with gr.Column(scale=3, min_width=320):
            with gr.Row():
                beta = gr.Slider(
                    0, MAX_BETA, step=0.01, label="β: how much is subtracted", elem_id="beta", scale=5, min_width=300
                )
                to_auto = gr.Button("Set β to auto", size="sm", min_width=90)
            sheets = gr.HTML(elem_id="sheets")
            outcome = gr.HTML(elem_id="outcome")

    source.change(_fields_of, source, [data, folder, files, classes], **NO_PROGRESS)
    chosen = [data.input, corruption.input, severity.release, model.input, method.input, count.release]
    entered = [folder.submit, classes.submit, files.upload]
    shown = gr.on(
        [page.load, show.click, *chosen, *entered],
        _encode,
        [source, data, folder, files, classes, corruption, severity, model, method, count],
        [batch, beta, outcome, sheets],
        show_progress_on=[outcome],
        trigger_mode="always_last",
    )
    cancel.click(None, cancels=[shown])
    beta.input(_move, [batch, beta], outcome, trigger_mode="always_last", **NO_PROGRESS)
    to_auto.click(_set_to_auto, batch, [beta, outcome], **NO_PROGRESS)


def _fields_of(source: str) -> list[Any]:
    """Which fields a source of pictures needs."""
    shown = (source == EMBEDDED, source == FOLDER, source == UPLOAD, source != EMBEDDED)
    return [gr.update(visible=is_shown) for is_shown in shown]


@errors_shown()
def _encode(
    source: str,
    data: str,
    folder: str,
    files: Sequence[str] | None,
    classes: str,
    corruption: str,
    severity: int,
    model: str,
    method: str,
    count: int,
    progress: gr.Progress = gr.Progress(),  # noqa: B008  (how gradio finds out that a bar is wanted)
) -> tuple[EncodedBatch, Any, str, str]:
    progress(0.1, desc="Loading the model")
    loaded, names = batches.shared_model(model), _split_names(classes)
    progress(0.3, desc="Reading pictures")
    if source == EMBEDDED:
        found = batches.read_data(data, corruption, severity, count)
    elif source == FOLDER:
        found = batches.read_folder(folder.strip(), names, loaded, count).corrupted(corruption, severity)
    else:
        uploaded = [Path(file) for file in files or ()][:count]
        found = batches.read_files(uploaded, names, loaded).corrupted(corruption, severity)
    for file in found.skipped:
        gr.Warning(escape(f"Skipped {file}."))
    progress(0.6, desc="Encoding")
    batch = EncodedBatch(found, shared_classifier(model, found.class_names), method)
    return (
        batch,
        _at(batch.auto.beta, batch),
        batches.batch_outcome(batch, batch.auto),
        _mark(batch) + batches.batch_sheets(batch),
    )


def _mark(batch: EncodedBatch) -> str:
    """Where the slider shows what auto chose."""
    return f"<style>#beta {{ --auto: {min(1, batch.auto.beta / MAX_BETA):.3f} }}</style>"


def _at(beta: float, batch: EncodedBatch) -> Any:
    return gr.update(value=round(beta, 2), info=f"auto chooses {batch.auto.beta:.2f}, where the mark is")


@errors_shown()
def _move(batch: EncodedBatch | None, beta: float) -> Any:
    return gr.skip() if batch is None else batches.batch_outcome(batch, batch.at(beta))


@errors_shown()
def _set_to_auto(batch: EncodedBatch | None) -> Any:
    return (
        (gr.skip(), gr.skip())
        if batch is None
        else (_at(batch.auto.beta, batch), batches.batch_outcome(batch, batch.auto))
    )


# A stream

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


@errors_shown()
def _step(playing: Playing | None, model: str, second: str, data: str, *changing: Any) -> tuple[Playing, str, str]:
    """The next batch; of a new stream where there is none, or where it was begun with others."""
    begun_with = (model, second, data)
    if playing is None or playing[0] != begun_with:
        playing = begun_with, Player(shared_classifier(model, load_data(data).class_names), second)
    player = playing[1]
    player.step(Setting(data, *changing))
    return playing, stream_charts(player), stream_classes(player)


# Results

Folders = tuple[dict[str, Comparison], ...]
"""The comparisons of one folder by setting, or of two that are compared."""


def add_records_tab() -> None:
    """Fields and tables, and what happens when they are used."""
    folders = gr.State(())
    with gr.Row():
        path = gr.Textbox("runs", label="Folder of records", min_width=200)
        other = gr.Textbox("", label="Compare with another folder", placeholder="none", min_width=200)
        read = gr.Button("Open", variant="primary", min_width=90, scale=0)
    with gr.Row():
        title = gr.Dropdown([], label="Setting", min_width=200)
        table = gr.Dropdown([], label="Table", min_width=200)
    grid = gr.Dataframe(
        label="Click a header, then ⋮, to sort; click a cell to see its record",
        interactive=False,
        type="array",
        pinned_columns=1,
        max_height=800,
    )
    with gr.Row():
        classes = gr.HTML(min_width=300, elem_id="record-classes")
        record = gr.JSON(label="Record", min_width=300, visible=False)

    gr.on(
        [read.click, path.submit, other.submit],
        _open,
        [path, other],
        [folders, title, table, grid],
        show_progress_on=[grid],
    )
    title.input(_choose_setting, [folders, title], [table, grid], **NO_PROGRESS)
    table.input(_choose_table, [folders, title, table], grid, **NO_PROGRESS)
    grid.select(_choose_cell, [folders, title, table], [classes, record], **NO_PROGRESS)


@errors_shown()
def _open(path: str, other: str) -> tuple[Any, ...]:
    folders = tuple(read_comparisons_of(each.strip()) for each in (path, other) if each.strip())
    if not folders:
        raise DataError("Name a folder of records, as tta-panda bench writes it: runs.")
    titles = [title for title in folders[0] if all(title in folder for folder in folders)]
    if not titles:
        raise DataError(f"{path} and {other} have no setting in common: there is nothing to compare.")
    return folders, gr.update(choices=titles, value=titles[0]), *_choose_setting(folders, titles[0])


def _choose_setting(folders: Folders, title: str) -> tuple[Any, Any]:
    tables = [tables_of(folder[title]) for folder in folders]
    names = [name for name in tables[0] if all(name in each for each in tables)]
    return gr.update(choices=names, value=names[0]), _choose_table(folders, title, names[0])


def _choose_table(folders: Folders, title: str, name: str) -> Any:
    return as_grid(_table(folders, title, name))


def _table(folders: Folders, title: str, name: str) -> Table:
    """The table of one folder, or the difference of two."""
    found = [tables_of(folder[title])[name] for folder in folders]
    return found[0] if len(found) == 1 else difference(*found)


def _choose_cell(folders: Folders, title: str, name: str, chosen: gr.SelectData) -> tuple[str, Any]:
    """The histograms and records behind a cell."""
    place = chosen.index[1] - 1
    label = _table(folders, title, name).columns[place].title if place >= 0 else ""
    corruption = str(chosen.row_value[0])
    records = [record for folder in folders for record in records_of(folder[title], corruption, label)]
    if not records:
        return "<p>A cell of one corruption and one method has a record; this one has none.</p>", gr.update(
            visible=False
        )
    shown = "".join(record_classes(record, corruption) for record in records)
    return shown, gr.update(value=[row for record in records for row in record.rows()], visible=True)


# A camera or a video

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
            answer = gr.HTML(elem_id="camera-says")

    playing = start.click(_play, [video, classes, model, method, every], shown)
    stop.click(None, cancels=[playing])
    camera.stream(
        _look, [camera_method, camera, classes, model, method], [camera_method, answer],
        stream_every=0.5, show_progress="hidden", trigger_mode="once",
    )  # fmt: skip
    for change in (classes.input, model.input, method.input):
        change(lambda: None, None, camera_method, **NO_PROGRESS)


def _method(classes: str, model: str, method: str) -> Method:
    return create_method(method, shared_classifier(model, tuple(_split_names(classes))))


def _play(
    video: str | None,
    classes: str,
    model: str,
    method: str,
    every: int,
    progress: gr.Progress = gr.Progress(),  # noqa: B008  (how gradio finds out that a bar is wanted)
) -> Iterator[str]:
    with errors_shown():
        if video is None:
            raise InvalidInputError("Upload a video first.")
        made = _method(classes, model, method)
        kept: deque[tuple[Frame, tuple[str, bool]]] = deque(maxlen=KEPT)
        for share, frame in frames(Path(video), every):
            progress(share, desc="Predicting")
            prediction = predict_frame(made, frame)
            thumbnail = np.asarray(fit_picture(Image.fromarray(frame), TILE))
            kept.appendleft((thumbnail, (_sentence(prediction), prediction.changed)))
            pictures, captions = zip(*kept, strict=True)
            yield sheet("frames", np.stack(pictures)) + tiles("frames", captions)


@errors_shown()
def _look(made: Method | None, frame: Frame | None, *names: str) -> tuple[Any, Any]:
    """The prediction for what the camera shows now."""
    if frame is None:
        return gr.skip(), gr.skip()
    made = made or _method(*names)
    return made, f"<h2>{escape(_sentence(predict_frame(made, frame)))}</h2>"


def _sentence(prediction: Prediction) -> str:
    plain = f" (plain: {prediction.plain_predicted})" if prediction.changed else ""
    return f"{prediction.predicted} {prediction.probability:.0%}{plain}"
