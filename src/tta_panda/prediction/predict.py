"""Classify pictures of any kind, in order, and compare with the unadapted model."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast, overload

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tta_panda.data.glyphs import symbols
from tta_panda.data.listing import shortened
from tta_panda.errors import BrokenImageError, DataError, InvalidInputError, TtaPandaWarning
from tta_panda.escapes import path_text, printable
from tta_panda.files import to_dataframe
from tta_panda.images import AS_SHOWN, Decoding
from tta_panda.methods import create_method
from tta_panda.methods.base import Method, adapt_and_predict_plain
from tta_panda.models import DEFAULT_FOR_PICTURES, load_model, make_classifier, recorded_name
from tta_panda.models.base import ImageModel, framing_of
from tta_panda.models.devices import Backend, Precision, resolve_device
from tta_panda.options import Count, Share, check_option
from tta_panda.prediction import DEFAULT_METHOD
from tta_panda.prediction.reading import (
    LabelOf,
    Pause,
    Picture,
    decode,
    find_classes,
    find_pictures,
    read_batches,
    thumbnail,
)
from tta_panda.prediction.summary import Summary
from tta_panda.progress import make_progress

if TYPE_CHECKING:
    import pandas

ROWS_SHOWN = 50
TOP = 5


@dataclass(frozen=True)
class Prediction:
    """The predictions of a method and of the unadapted model for one picture, or why it cannot be read."""

    index: int
    """Position in the stream, from 0."""
    path: str | None = None
    label: str | None = None
    """The true class, if the picture's folder is named after a class."""
    predicted: str | None = None
    """The class predicted by the method."""
    probability: float | None = None
    margin: float | None = None
    """Probability of the predicted class minus that of the second most probable one."""
    top: tuple[tuple[str, float], ...] = ()
    """The most probable classes, with their probabilities."""
    plain_predicted: str | None = None
    """The class predicted by the unadapted model, without Panda."""
    plain_probability: float | None = None
    p_value: float | None = None
    """Share of negatives, which show no object, that resemble the classes at least as much; None without negatives."""
    rejected: bool | None = None
    """Whether `p_value` is larger than `reject`, which suggests none of the classes; None if `reject` is not set."""
    error: str | None = None
    """Why the picture cannot be read."""

    @classmethod
    def of(
        cls, index: int, path: str | None, label: str | None, class_names: Sequence[str], own: Tensor, plain: Tensor
    ) -> Self:
        """Make a prediction from the probabilities (K,) of the method and of the unadapted model."""
        values, classes = own.topk(min(TOP, len(class_names)))
        top = tuple((class_names[k], value) for k, value in zip(classes.tolist(), values.tolist(), strict=True))
        (predicted, probability), (_, second) = top[:2]
        k = int(plain.argmax())
        return cls(
            index, path, label, predicted, probability, probability - second, top, class_names[k], float(plain[k])
        )

    @property
    def changed(self) -> bool:
        """Whether the unadapted model predicts another class."""
        return self.predicted != self.plain_predicted

    def __repr__(self) -> str:
        name = self.path if self.path is not None else f"picture {self.index}"
        if self.error is not None:
            return f"<{name}: skipped, {self.error}>"
        plain = f", unadapted {self.plain_predicted} {self.plain_probability:.0%}" if self.changed else ""
        return f"<{name}: {self.predicted} {self.probability:.0%}{plain}>"


class Predictions(Sequence[Prediction]):
    """The predictions of one call of `tta_panda.predict`, in order. A notebook shows them as a table.

    Args:
        predictions: one for each picture.
        summary: counts over all pictures.
        method: the name of the method.
        pictures: the pictures; the table shows thumbnails of the first ones.
    """

    def __init__(
        self, predictions: Iterable[Prediction], summary: Summary, method: str, pictures: Sequence[Picture] = ()
    ):
        self._predictions = list(predictions)
        self._pictures = pictures[:ROWS_SHOWN]
        self._summary = summary
        self._method = method

    @overload
    def __getitem__(self, index: int) -> Prediction: ...
    @overload
    def __getitem__(self, index: slice) -> list[Prediction]: ...
    def __getitem__(self, index: int | slice) -> Prediction | list[Prediction]:
        return self._predictions[index]

    def __len__(self) -> int:
        return len(self._predictions)

    @property
    def summary(self) -> dict[str, Any]:
        """Counts, beta and gamma; with labels, also accuracy and bias of the method and of the unadapted model."""
        return self._summary.facts()

    @property
    def explanation(self) -> str:
        """The bias that was found, the correction, and how many predictions changed, or why none did."""
        return "\n".join(self._summary.explain(self._method))

    def to_dataframe(self) -> pandas.DataFrame:
        """Return a DataFrame with a row per prediction; needs `pip install "tta-panda[pandas]"`."""
        return to_dataframe(asdict(each) for each in self).set_index("index")

    def __repr__(self) -> str:
        shown = [repr(each) for each in self[:ROWS_SHOWN]]
        if len(self) > ROWS_SHOWN:
            shown.append(f"and {len(self) - ROWS_SHOWN:,} more")
        return "\n".join([*shown, self.explanation])

    def _repr_html_(self) -> str:
        rows = "".join(map(_html_row, self[:ROWS_SHOWN], self._pictures))
        lines = self.explanation.split("\n")
        if len(self) > ROWS_SHOWN:
            lines.insert(0, f"The first {ROWS_SHOWN} of {len(self):,}.")
        heads = "".join(f"<th>{head}</th>" for head in ("", "picture", "label", "predicted", "unadapted"))
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        return table + "".join(f"<p>{escape(printable(line))}</p>" for line in lines)


def _html_row(prediction: Prediction, picture: Picture) -> str:
    small = thumbnail(picture)
    image = f'<img src="data:image/jpeg;base64,{small}" width="64" height="64" alt="">' if small else ""
    name = Path(prediction.path).name if prediction.path else str(prediction.index)
    own, plain = prediction.error or "", ""
    if prediction.error is None:
        own = f"{prediction.predicted} {prediction.probability:.0%}"
        plain = f"{prediction.plain_predicted} {prediction.plain_probability:.0%}"
    own_cell, *cells = (escape(printable(text)) for text in (own, name, prediction.label or "", plain))
    strong = f"<b>{own_cell}</b>" if prediction.changed else own_cell
    return f"<tr><td>{image}</td><td>{cells[0]}</td><td>{cells[1]}</td><td>{strong}</td><td>{cells[2]}</td></tr>"


def predict(
    images: Any,
    classes: Sequence[str] | None = None,
    *,
    model: str | ImageModel = DEFAULT_FOR_PICTURES,
    method: str | Method = DEFAULT_METHOD,
    batch_size: int = 100,
    seed: int = 0,
    reject: float | None = None,
    device: str = "auto",
    skip_broken: bool = True,
    progress: bool = True,
) -> Predictions:
    """Classify pictures, and compare with the unadapted model.

    The pictures form one stream, and are predicted in order. Sub-folders label their pictures if they are named after
    classes.

    Args:
        images: a folder, a file or a wildcard such as `"photos/**/*.jpg"`; a Pillow image, an array (H, W, 3) or a
            tensor (3, H, W); a list of these; or a batch (B, H, W, 3) or (B, 3, H, W).
        classes: names of the classes; None infers them from sub-folders, or from a model trained on ImageNet.
        model: the name of a model, or a loaded model.
        method: the name of a method, or a method object, which has its own model and classes and continues from its
            current state.
        batch_size: number of pictures to adapt to at a time.
        seed: random seed of the method.
        reject: mark pictures with a larger `p_value` as `rejected`, which suggests that they show none of the classes;
            the method has to draw negatives.
        device: torch device to run the model on; `"auto"` chooses the best one available.
        skip_broken: return a prediction with an `error` for a picture that cannot be read; False raises `DataError`.
        progress: show a progress bar.
    """
    check_option("batch_size", batch_size, Count)
    pictures, folders = _list_pictures(images)
    if isinstance(method, Method):
        if classes is not None or model is not DEFAULT_FOR_PICTURES:
            raise InvalidInputError("A method object has its own model and classes: omit model= and classes=.")
        made = method
        _, label_of = find_classes(folders, made.classifier.class_names, made.classifier.model)
    else:
        made, label_of = make_method(folders, classes, model, method, device=device, seed=seed)
    check_reject(made, reject)
    summary = Summary(made.classifier.class_names)
    found: list[Prediction] = []
    with make_progress("predicting", len(pictures)) if progress else nullcontext() as bar:
        for batch in predict_batches(made, pictures, batch_size, summary, label_of=label_of, reject=reject):
            found += _checked(batch, skip_broken)
            if bar:
                bar.advance(bar.task_ids[0], len(batch))
    return Predictions(found, summary, made.name, pictures)


def make_method(
    folders: Sequence[Path],
    classes: Sequence[str] | None,
    model: str | ImageModel,
    method: str,
    *,
    device: str = "auto",
    precision: str = "fp32",
    backend: str = "torch",
    templates: Sequence[str] | None = None,
    preset: str | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
) -> tuple[Method, LabelOf]:
    """Create a method from names, and a function from the path of a picture to its label."""
    if taken := sorted({"name", "classifier", "preset", "seed"}.intersection(options or {})):
        raise InvalidInputError(f"{taken[0]} is not an option of a method.")
    if isinstance(model, str):
        loaded = load_model(model, resolve_device(device), cast(Precision, precision), cast(Backend, backend))
    else:
        loaded = model
    names, label_of = find_classes(folders, classes, loaded)
    if isinstance(model, str) and (warning := unknown_symbols(model, names)):
        warnings.warn(warning, TtaPandaWarning, stacklevel=3)
    prompts = templates[0] if templates and len(templates) == 1 and "{" not in templates[0] else templates
    classifier = make_classifier(loaded, names, prompts or "photo")
    return create_method(method, classifier, preset=preset, seed=seed, **(options or {})), label_of


def check_reject(method: Method, reject: float | None) -> None:
    """Raise `InvalidInputError` unless pictures with a larger p-value than this can be rejected."""
    if reject is None:
        return
    check_option("reject", reject, Share)
    if method.features.source is None:
        raise InvalidInputError(
            f"To reject pictures, {method.name} would have to draw negatives; use clip+panda or clip+panda+level."
        )


def unknown_symbols(model: str, class_names: Iterable[str]) -> str:
    """A warning if the model is `mini` and some classes are not among its symbols; otherwise empty."""
    unknown = [name for name in class_names if name not in symbols()] if recorded_name(model) == "mini" else []
    if not unknown:
        return ""
    return (
        f"mini only recognises the embedded symbols, not {shortened(unknown)}. Photographs need another model, such as "
        f"{DEFAULT_FOR_PICTURES}."
    )


def _list_pictures(images: Any) -> tuple[list[Picture], list[Path]]:
    """A flat list of the pictures, and the paths that were given."""
    if isinstance(images, Tensor | np.ndarray) and images.ndim == 4:
        images = list(images)
    single = isinstance(images, str | os.PathLike | Image.Image | Tensor | np.ndarray)
    pictures: list[Picture] = []
    folders: list[Path] = []
    for each in [images] if single else images:
        if isinstance(each, str | os.PathLike):
            pictures += find_pictures([os.fspath(each)])[0]
            folders.append(Path(each))
        else:
            pictures.append(each)
    if not pictures:
        raise DataError(f"There are no images in {images if single else 'the given list'}.")
    return pictures, folders


def predict_stream(
    method: Method, pictures: Iterable[Picture | Pause], *, batch_size: int = 100, skip_broken: bool = True
) -> Iterator[Prediction]:
    """Classify a stream of pictures, adapting to it.

    The method continues from its current state; call `method.reset()` before a new stream.

    Args:
        method: the method to predict with.
        pictures: paths of files, Pillow images, arrays (H, W, 3) or tensors (3, H, W), of any size. A generator may be
            endless. Two batches are read ahead; yield `tta_panda.PAUSE` to have all pictures so far predicted at once.
        batch_size: number of pictures to adapt to at a time; may be 1.
        skip_broken: yield a prediction with an `error` for a picture that cannot be read; False raises `DataError`.
    """
    if isinstance(pictures, str | os.PathLike):
        raise InvalidInputError(f"pictures must be a list of pictures or paths, got one path; write [{pictures!r}].")
    check_option("batch_size", batch_size, Count)
    summary = Summary(method.classifier.class_names)
    batches = predict_batches(method, pictures, batch_size, summary)
    return (prediction for batch in batches for prediction in _checked(batch, skip_broken))


def _checked(predictions: Iterable[Prediction], skip_broken: bool) -> Iterator[Prediction]:
    for prediction in predictions:
        if prediction.error is not None and not skip_broken:
            raise BrokenImageError(path_text(prediction.path or str(prediction.index)), prediction.error)
        yield prediction


def predict_batches(
    method: Method,
    pictures: Iterable[Picture | Pause],
    batch_size: int,
    summary: Summary,
    decoding: Decoding = AS_SHOWN,
    label_of: LabelOf = lambda _path: None,
    reject: float | None = None,
) -> Iterator[list[Prediction]]:
    """Classify pictures batch by batch, and update the summary, which may already have counted earlier pictures.

    Args:
        label_of: returns the true class of a path, or None if it is not known.
        reject: largest p-value of a picture that is not rejected; None to reject none.
    """
    fitted = partial(decode, framing=framing_of(method.classifier.model), decoding=decoding)
    names = method.classifier.class_names
    since = time.perf_counter()
    for decoded in read_batches(pictures, fitted, batch_size):
        start = time.perf_counter()
        own, plain = _probabilities(method, [image for _, image in decoded if isinstance(image, Tensor)])
        busy = time.perf_counter() - start
        compared = method.p_values is not None and len(own)
        p_values = cast(Tensor, method.p_values).tolist() if compared else [None] * len(own)
        found = iter(zip(own, plain, p_values, strict=True))
        predictions = []
        for index, (path, image) in enumerate(decoded, summary.pictures):
            label = label_of(path) if path else None
            if isinstance(image, BrokenImageError):
                predictions.append(Prediction(index, path, label, error=image.reason))
            else:
                *each, p = next(found)
                rejected = None if reject is None or p is None else p > reject
                predictions.append(
                    replace(Prediction.of(index, path, label, names, *each), p_value=p, rejected=rejected)
                )
        now = time.perf_counter()
        summary.update(predictions, own, plain)
        summary.update_strength("beta", method.beta)
        summary.update_strength("gamma", method.gamma)
        summary.seconds += now - since
        summary.busy += busy
        since = now
        yield predictions
    summary.explanation = method.explain()


@torch.no_grad()
def _probabilities(method: Method, images: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Probabilities (B, K) of the method and of the unadapted model."""
    if not images:
        nothing = torch.empty(0, len(method.classifier.class_names))
        return nothing, nothing
    own, plain = adapt_and_predict_plain(method, images)
    return own.softmax(dim=1).cpu(), plain.softmax(dim=1).cpu()
