"""The tab of one batch: its pictures, its negatives, and predictions as beta moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from tta_panda.app import pictures
from tta_panda.app.batch import EncodedBatch, frozen_methods
from tta_panda.app.handlers import NO_PROGRESS, sentences
from tta_panda.app.shown import batch_outcome, batch_sheets

CSS = """
#beta input[type=range] {
  height: 22px; --at: calc(10px + (100% - 23px) * var(--auto, 0));
  background: linear-gradient(currentColor, currentColor) var(--at) 0 / 3px 100% no-repeat }
"""
EMBEDDED, FOLDER, UPLOAD = "embedded data", "a folder", "uploaded files"
MOST_BETA = 2.0


def add_batch_tab(page: gr.Blocks, models: Sequence[str]) -> None:
    """Fields and pictures, and what happens when they are used; the first batch is shown at once."""
    batch = gr.State(time_to_live=3600)
    with gr.Row():
        with gr.Column(scale=1, min_width=260):
            source = gr.Radio([EMBEDDED, FOLDER, UPLOAD], value=EMBEDDED, label="Pictures")
            data = gr.Dropdown(pictures.embedded_data(), label="Data set")
            folder = gr.Textbox("", label="Folder", placeholder="~/photos", visible=False)
            files = gr.File(label="Picture files", file_count="multiple", visible=False, height=140)
            classes = gr.Textbox("", label="Classes", placeholder="cat, dog, bird", visible=False)
            corruption = gr.Dropdown(list(pictures.DOMAINS), value="fog", label="Corruption")
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
                    0, MOST_BETA, step=0.01, label="β: how much is subtracted", elem_id="beta", scale=5, min_width=300
                )
                to_auto = gr.Button("Set β to auto", size="sm", min_width=90)
            sheets = gr.HTML(elem_id="sheets")
            outcome = gr.HTML(elem_id="outcome")

    source.change(_fields_of, source, [data, folder, files, classes], **NO_PROGRESS)
    chosen = [data.input, corruption.input, severity.release, model.input, method.input, count.release]
    given = [folder.submit, classes.submit, files.upload]
    shown = gr.on(
        [page.load, show.click, *chosen, *given],
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


@sentences
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
    loaded, names = pictures.shared_model(model), pictures.split_names(classes)
    progress(0.3, desc="Reading pictures")
    if source == EMBEDDED:
        found = pictures.of_data(data, corruption, severity, count)
    elif source == FOLDER:
        found = pictures.of_folder(folder.strip(), names, loaded, corruption, severity, count)
    else:
        found = pictures.of_files([Path(file) for file in files or ()][:count], names, loaded, corruption, severity)
    for file in found.left_out:
        gr.Warning(f"Left out {file}.")
    progress(0.6, desc="Encoding")
    batch = EncodedBatch(found, pictures.shared_classifier(model, found.class_names), method)
    return batch, _at(batch.auto.beta, batch), batch_outcome(batch, batch.auto), _mark(batch) + batch_sheets(batch)


def _mark(batch: EncodedBatch) -> str:
    """Where the slider shows what auto chose."""
    return f"<style>#beta {{ --auto: {min(1, batch.auto.beta / MOST_BETA):.3f} }}</style>"


def _at(beta: float, batch: EncodedBatch) -> Any:
    return gr.update(value=round(beta, 2), info=f"auto chooses {batch.auto.beta:.2f}, where the mark is")


@sentences
def _move(batch: EncodedBatch | None, beta: float) -> Any:
    return gr.skip() if batch is None else batch_outcome(batch, batch.at(beta))


@sentences
def _set_to_auto(batch: EncodedBatch | None) -> Any:
    return (gr.skip(), gr.skip()) if batch is None else (_at(batch.auto.beta, batch), batch_outcome(batch, batch.auto))
