"""The tab for batches: encode pictures from embedded data, a folder or an upload once, and predict at any beta."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, cast

import gradio as gr
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tta_panda.app.common import (
    DOMAINS,
    LABELS,
    MINI,
    NO_PROGRESS,
    embedded_data,
    errors_shown,
    metric_cells,
    quantity,
    shared_classifier,
    shared_model,
    split_names,
)
from tta_panda.app.drawing import Series, cell, class_table, panel, sheet, table, tiles
from tta_panda.data import CLEAN, load_data
from tta_panda.data.corruptions import corrupt
from tta_panda.data.listing import find_images
from tta_panda.data.stream import Stream
from tta_panda.errors import BrokenImageError, DataError, InvalidInputError
from tta_panda.evaluation.metrics import Scores, StreamMetrics
from tta_panda.methods import METHODS, create_method
from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import encode_images
from tta_panda.methods.views import ViewMethod
from tta_panda.models import Classifier, ImageModel
from tta_panda.models.base import framing_of
from tta_panda.panda import Beta
from tta_panda.prediction.predict import unknown_symbols
from tta_panda.prediction.reading import decode, find_classes
from tta_panda.reporting.cells import ACCURACY, BIAS
from tta_panda.reporting.figures import PANDA_COLOUR, PLAIN_COLOUR

EMBEDDED, FOLDER, UPLOAD = "embedded data", "a folder", "uploaded files"
FIRST_CORRUPTION = "fog"
MAX_BETA = 2.0
NEGATIVES_LEAD = (
    "Shuffled patches show no object, so the classes that they resemble are those that the corruption favours."
)
MAX_NEGATIVES = 8
"""Number of negatives shown at full size."""
NO_PICTURES = {FOLDER: "Enter a folder of pictures, and press Show.", UPLOAD: "Upload pictures to see predictions."}
NO_CLASSES = "Cannot infer the class names from sub-folders; enter two or more under Classes, such as: cat, dog, bird."
UNLABELLED = -1
"""The label of a picture whose class is not known."""


def frozen_methods() -> list[str]:
    """Names of the methods that need one encoder pass per picture, whatever the beta."""
    found = {name: METHODS.get(name) for name in METHODS}
    return [name for name, kind in found.items() if issubclass(kind, FrozenMethod) and not issubclass(kind, ViewMethod)]


@dataclass(frozen=True, eq=False)
class Pictures:
    """A batch of pictures of one size, with the names of the possible classes."""

    images: NDArray[np.uint8]  # (B, H, W, 3)
    labels: Tensor  # (B,), `UNLABELLED` where the class is not known
    class_names: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    """Files that cannot be read, with reasons."""

    @property
    def tensor(self) -> Tensor:
        """The images as a tensor (B, 3, H, W)."""
        return torch.tensor(self.images).permute(0, 3, 1, 2)

    def corrupted(self, corruption: str, severity: int) -> Pictures:
        """Corrupt the pictures."""
        if corruption == CLEAN:
            return self
        return replace(self, images=corrupt(self.images, corruption, severity, seed=0))


def read_data(name: str, corruption: str, severity: int, count: int, seed: int = 0) -> Pictures:
    """Read the first pictures of a shuffled stream of embedded data."""
    dataset = load_data(name, corruption, severity)
    chosen = Stream(dataset, count, seed).plan[:count]
    return Pictures(dataset.images_at(chosen), torch.from_numpy(dataset.labels[chosen]), dataset.class_names)


def read_pictures(places: Sequence[str | Path], class_names: Sequence[str], model: ImageModel, count: int) -> Pictures:
    """Read pictures from files and folders, cropped to the model's size; unreadable files are listed in `skipped`.

    If there are more than `count`, a random choice is read. Without `class_names`, sub-folders name the classes.
    """
    found = find_images(places).paths
    if not found:
        raise DataError(f"There are no pictures in {', '.join(map(str, places))}.")
    try:
        names, label_of = find_classes([Path(place) for place in places], class_names or None, model)
    except InvalidInputError as error:
        raise InvalidInputError(NO_CLASSES) from error
    if len(names) < 2:
        raise InvalidInputError(NO_CLASSES)
    if len(found) > count:
        found = tuple(found[index] for index in np.random.default_rng(0).permutation(len(found))[:count])
    images, labels, skipped = [], [], []
    for file in found:
        _, image = decode(file, framing_of(model))
        if isinstance(image, BrokenImageError):
            skipped.append(f"{file.name}: {image.reason}")
            continue
        images.append(image)
        label = label_of(str(file))
        labels.append(UNLABELLED if label is None else names.index(label))
    if not images:
        raise DataError(f"None of the pictures can be read. {'; '.join(skipped)}.")
    pixels = torch.stack(images).permute(0, 2, 3, 1).numpy()
    return Pictures(pixels, torch.tensor(labels), tuple(names), tuple(skipped))


class Outcome(NamedTuple):
    """The predictions of a method for a batch at one beta."""

    beta: float
    probabilities: Tensor  # (B, K)
    metrics: StreamMetrics | None
    """Over the pictures whose class is known; None if there are none."""

    @property
    def predicted(self) -> Tensor:
        return self.probabilities.argmax(dim=1)

    @property
    def counts(self) -> list[int]:
        """How often each class is predicted."""
        return self.predicted.bincount(minlength=self.probabilities.shape[1]).tolist()


class EncodedBatch:
    """Pictures and negatives, encoded once to be predicted at any beta.

    Args:
        pictures: the batch.
        classifier: a classifier of the pictures' classes.
        method: one of `frozen_methods()`.
    """

    def __init__(self, pictures: Pictures, classifier: Classifier, method: str = "clip"):
        self.pictures = pictures
        self.class_names = classifier.class_names
        self._method = cast(FrozenMethod, create_method(f"{method}+panda", classifier, beta="auto"))
        self._lock = threading.Lock()  # the slider may move while an earlier beta is being computed
        features = self._method.features
        batch = features.prepare(pictures.tensor)
        batch.negatives = features.draw(batch.images)
        assert batch.negatives is not None
        with torch.no_grad():
            raw = encode_images(classifier.model, batch.with_negatives)
            self._encoded = features.split(raw, batch.negatives)
            assert self._encoded.offset is not None
            of_negatives = classifier.embed(raw[len(batch.images) :].float())
            resembled, of_mean = (
                classifier.logits(each).softmax(dim=1).cpu() for each in (of_negatives, self._encoded.offset)
            )
        self.negatives = batch.negatives.images.cpu()  # (M, 3, S, S), in [0, 1]
        self.negatives_resemble = resembled  # (M, K), probabilities
        self.resemblance: list[float] = of_mean.mean(dim=0).tolist()
        """Probability of each class for the mean embedding of the negatives."""
        assert features.source is not None
        look = features.source.resembled(classifier.class_names, classifier.class_embeddings)
        self.plain, self.auto = self.predict(0.0), self.predict("auto")
        self.explanation = look + self._method.explain()

    @property
    def label_counts(self) -> list[int] | None:
        """How often each class occurs among the labelled pictures; None if there are none."""
        known = self.pictures.labels[self.pictures.labels != UNLABELLED]
        return known.bincount(minlength=len(self.class_names)).tolist() if len(known) else None

    @torch.no_grad()
    def predict(self, beta: Beta) -> Outcome:
        """Predict the batch with the method in its initial state; nothing is encoded again."""
        with self._lock:
            self._method.reset()
            self._method.beta = beta
            logits, chosen = self._method.adapt_encoded(self._encoded).cpu(), self._method.beta or 0.0
        known = self.pictures.labels != UNLABELLED
        metrics = StreamMetrics(len(self.class_names)) if known.any() else None
        if metrics:
            metrics.update(Scores.of(logits[known], self.pictures.labels[known]))
        return Outcome(chosen, logits.softmax(dim=1), metrics)


def render_negatives(batch: EncodedBatch) -> str:
    """Render the negatives of a batch, each with the classes that it resembles to the model."""
    count = len(batch.negatives)
    shown = [
        panel(name, image, batch.class_names, probabilities.tolist())
        for name, image, probabilities in zip(
            (f"negative {number} of {count}" for number in range(1, MAX_NEGATIVES + 1)),
            _as_uint8(batch.negatives),
            batch.negatives_resemble,
            strict=False,
        )
    ]
    mean = panel("mean of all negatives", None, batch.class_names, batch.resemblance)
    lead = f"<p>{escape(NEGATIVES_LEAD)} {escape(batch.explanation)}</p>"
    return f'{lead}<div class="panels">{mean}{"".join(shown)}</div>'


def _as_uint8(images: Tensor) -> NDArray[np.uint8]:
    """Convert images (M, 3, S, S) in [0, 1] to (M, S, S, 3)."""
    return images.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def render_outcome(batch: EncodedBatch, outcome: Outcome) -> str:
    """Render accuracy, bias, classes and pictures at one beta, next to those of the plain method."""
    rows = {
        "plain (β = 0)": batch.plain,
        f"β = {outcome.beta:.2f}": outcome,
        f"auto (β = {batch.auto.beta:.2f})": batch.auto,
    }
    facts = {
        name: [*metric_cells(each.metrics), cell(str(int((each.predicted != batch.plain.predicted).sum())))]
        for name, each in rows.items()
    }
    columns = {
        "negatives": Series(batch.resemblance, form=".0%"),
        "plain": Series(batch.plain.counts, PLAIN_COLOUR),
        f"β = {outcome.beta:.2f}": Series(outcome.counts, PANDA_COLOUR),
    }
    if batch.label_counts is not None:
        columns[LABELS] = Series(batch.label_counts)
    pictures = quantity(len(batch.pictures.images), "picture")
    why = f"<p>With auto: {escape(batch.explanation)}</p>"
    return (
        table(f"Predictions for {pictures}", [ACCURACY.short, BIAS.title, "changed"], facts)
        + why
        + class_table("What negatives resemble, and how often each class is predicted", batch.class_names, columns)
        + tiles("pictures", _tiles(batch, outcome))
    )


def _tiles(batch: EncodedBatch, outcome: Outcome) -> Iterator[tuple[str, bool]]:
    """Captions of the pictures: predicted class, the plain method's if it differs, and whether they are right."""
    predicted = zip(batch.plain.predicted.tolist(), outcome.predicted.tolist(), strict=True)
    for (before, after), label in zip(predicted, batch.pictures.labels.tolist(), strict=True):
        known = label != UNLABELLED
        names = [f"{'✓ ' if k == label else '✗ ' if known else ''}{batch.class_names[k]}" for k in (before, after)]
        yield " → ".join(dict.fromkeys(names)), before != after


def add_batch_tab(page: gr.Blocks, models: Sequence[str]) -> None:
    """Build the tab for batches; a first batch is shown at once."""
    batch = gr.State(time_to_live=3600)
    with gr.Row():
        with gr.Column(scale=1, min_width=260):
            source = gr.Radio([EMBEDDED, FOLDER, UPLOAD], value=EMBEDDED, label="Pictures")
            data = gr.Dropdown(embedded_data(), label="Data set")
            folder = gr.Textbox("", label="Folder", placeholder="~/photos", visible=False)
            files = gr.File(label="Picture files", file_count="multiple", visible=False, height=140)
            classes = gr.Textbox("", label="Classes", placeholder="cat, dog, bird", visible=False)
            corruption = gr.Dropdown(list(DOMAINS), value=FIRST_CORRUPTION, label="Corruption")
            severity = gr.Slider(1, 5, value=5, step=1, label="Severity")
            model = gr.Dropdown(list(models), value=MINI, label="Model")
            method = gr.Dropdown(frozen_methods(), label="Method")
            count = gr.Slider(10, 200, value=50, step=10, label="Pictures, at most")
            with gr.Row():
                show = gr.Button("Show", variant="primary", min_width=80)
                cancel = gr.Button("Cancel", min_width=80)
        with gr.Column(scale=3, min_width=320):
            with gr.Row():
                beta = gr.Slider(
                    0,
                    MAX_BETA,
                    step=0.01,
                    label="β: strength of subtraction",
                    elem_id="beta",
                    scale=5,
                    min_width=300,
                )
                to_auto = gr.Button("Set β to auto", size="sm", min_width=90)
            sheets = gr.HTML(elem_id="sheets")
            with gr.Tab("Predictions"):
                outcome = gr.HTML(elem_id="outcome")
            with gr.Tab("Negatives"):
                negatives = gr.HTML(elem_id="negatives")

    fields = [data, folder, files, classes, corruption, model]
    chosen_source = source.change(lambda source: _update_fields(source, models[0]), source, fields, **NO_PROGRESS)
    chosen = [data.input, corruption.input, severity.release, model.input, method.input, count.release]
    entered = [folder.submit, classes.submit, files.upload]
    inputs = [source, data, folder, files, classes, corruption, severity, model, method, count]
    outputs = [batch, beta, outcome, sheets, negatives]
    shown = gr.on(
        [page.load, show.click, *chosen, *entered],
        _encode,
        inputs,
        outputs,
        show_progress_on=[outcome],
        trigger_mode="always_last",
    )
    chosen_source.then(_encode, inputs, outputs, show_progress_on=[outcome])
    cancel.click(None, cancels=[shown])
    beta.input(lambda *given: _show_beta(*given)[1], [batch, beta], outcome, trigger_mode="always_last", **NO_PROGRESS)
    to_auto.click(_show_beta, batch, [beta, outcome], **NO_PROGRESS)


def _update_fields(source: str, own_model: str) -> list[Any]:
    """Updates of the fields for a source of pictures: which are shown, and defaults of corruption and model."""
    is_own = source != EMBEDDED
    shown = (not is_own, source == FOLDER, source == UPLOAD, is_own)
    values = (CLEAN, own_model) if is_own else (FIRST_CORRUPTION, MINI)
    return [*(gr.update(visible=each) for each in shown), *(gr.update(value=each) for each in values)]


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
) -> tuple[EncodedBatch | None, Any, Any, Any, Any]:
    places = {FOLDER: [folder.strip()] if folder.strip() else [], UPLOAD: files}.get(source)
    if source != EMBEDDED and not places:
        return None, gr.skip(), f"<p>{NO_PICTURES[source]}</p>", "", ""
    progress(0.1, desc="Loading the model")
    loaded, names = shared_model(model), split_names(classes)
    progress(0.3, desc="Reading pictures")
    if source == EMBEDDED:
        found = read_data(data, corruption, severity, count)
    else:
        found = read_pictures(places or (), names, loaded, count).corrupted(corruption, severity)
        if warning := unknown_symbols(model, found.class_names):
            gr.Warning(escape(warning))
    for file in found.skipped:
        gr.Warning(escape(f"Skipped {file}."))
    progress(0.6, desc="Encoding")
    batch = EncodedBatch(found, shared_classifier(model, found.class_names), method)
    mark = f"<style>#beta {{ --auto: {min(1, batch.auto.beta / MAX_BETA):.3f} }}</style>"  # on the slider
    return batch, *_show_beta(batch), mark + sheet("pictures", batch.pictures.images), render_negatives(batch)


@errors_shown()
def _show_beta(batch: EncodedBatch | None, beta: Beta = "auto") -> tuple[Any, Any]:
    """Update the slider and the predictions for a beta."""
    if batch is None:
        return gr.skip(), gr.skip()
    outcome = batch.auto if beta == "auto" else batch.predict(beta)
    chosen = f"auto chooses {batch.auto.beta:.2f} (marked)"
    return gr.update(value=round(outcome.beta, 2), info=chosen), render_outcome(batch, outcome)
