"""What methods are measured on, and the encoder passes that they cannot avoid."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from tta_panda.data.glyphs.render import draw_symbol, to_uint8
from tta_panda.data.glyphs.symbols import BENCHMARK_CLASSES, symbols
from tta_panda.errors import UnsupportedModelError
from tta_panda.methods import METHODS, features, parse_method
from tta_panda.methods.adaptation import adaptable_copy
from tta_panda.methods.base import Method
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models import Classifier, ImageModel, LinearClassifier, load_model, make_classifier
from tta_panda.models.devices import clock
from tta_panda.models.linear import LinearHeadModel
from tta_panda.speed.measure import Advance, Report, Row, Settings

_ENCODERS = ("encode_image", "encode_embedded")

EARLIER_BATCHES = 2
"""So that memories hold something, and a batch need not draw negatives where `refresh_every` says so."""


Measure = Callable[[str, Classifier, Tensor, Settings, Advance], Row]
"""What is measured of the method with this name on these images."""


def for_each_method(measure: Measure, settings: Settings, advance: Advance, notes: Sequence[str]) -> Report:
    """A row per method that was asked for; those that the model cannot serve are named."""
    model = load_model(settings.model, settings.device)
    classifier = make_classes(model, settings.classes)
    images = draw_pictures(settings.batch_size, model.image_size)
    names = dict.fromkeys(parse_method(name).base for name in settings.methods or METHODS)
    setting = (
        f"{settings.model}: {settings.batch_size} images, {settings.classes} classes, {torch.get_num_threads()} "
        f"thread(s), medians by {settings.clock}."
    )
    report = Report([], [setting, *notes])
    for name in names:
        try:
            row = measure(name, classifier, images, settings, lambda share: advance(share / len(names)))
        except UnsupportedModelError as error:
            report.notes.append(f"{name} is left out: {error}")
            continue
        report.rows.append({"method": name, **row})
    return report


def make_classes(model: ImageModel, count: int) -> Classifier:
    """A classifier for any number of classes; of a linear head, the first rows."""
    numbered = (f"thing {number}" for number in itertools.count(1))
    names = list(itertools.islice(itertools.chain(dict.fromkeys((*BENCHMARK_CLASSES, *symbols())), numbered), count))
    if isinstance(model, LinearHeadModel):
        return LinearClassifier(model, names, rows=range(count))
    return make_classifier(model, names)


def draw_pictures(count: int, side: int) -> Tensor:
    """Symbols (count, 3, side, side), uint8."""
    rng = np.random.default_rng(0)
    names = itertools.islice(itertools.cycle(BENCHMARK_CLASSES), count)
    pictures = np.stack([to_uint8(draw_symbol(name, rng, side)) for name in names])
    return torch.from_numpy(pictures.transpose(0, 3, 1, 2).copy())


def standing(method: Method, images: Tensor) -> Callable[[], None]:
    """Takes a method through a few batches, and gives a function that brings it back to where it then stands."""
    for _ in range(EARLIER_BATCHES):
        method.adapt(images)
    return partial(method.load_state_dict, method.state_dict())


class Pass(NamedTuple):
    """One call of an encoder: its name, what it was given, and whether a gradient was computed."""

    encode: str
    inputs: tuple[Tensor, ...]
    with_gradient: bool


def bare_passes(method: Method, images: Tensor) -> Callable[[], None]:
    """Adapts to a batch once, and gives a function that makes the same encoder passes and does nothing else."""
    trained = method if isinstance(method, TrainedMethod) else None
    with _recorded(trained.model if trained else method.classifier.model) as passes:
        method.adapt(images)
    model, adapted = _trainable(trained) if trained else (method.classifier.model, [])
    return partial(_replay, model, adapted, passes)


@contextlib.contextmanager
def _recorded(model: ImageModel) -> Iterator[list[Pass]]:
    """The passes through a model's encoders; of inputs that are alike, one is kept."""
    passes: list[Pass] = []
    samples: dict[object, tuple[Tensor, ...]] = {}

    def record(name: str, encode: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        encoded = encode(*inputs)
        kind = name, *((each.shape, each.requires_grad) for each in inputs)
        kept = samples.setdefault(kind, tuple(each.detach().requires_grad_(each.requires_grad) for each in inputs))
        passes.append(Pass(name, kept, encoded.requires_grad))
        return encoded

    with _wrapped([(model, name) for name in _ENCODERS], record):
        yield passes


def share_outside(method: Method, images: Tensor) -> float:
    """Adapt to a batch; returns the time outside encoders, backward passes and the making of views, over that inside.

    Both are of the same call, so a machine whose speed varies does not hide a percent.
    """
    model = method.model if isinstance(method, TrainedMethod) else method.classifier.model
    inside = 0.0

    def timed(_name: str, work: Callable[..., object], *given: Any, **options: Any) -> object:
        nonlocal inside
        start = clock(model.device)
        result = work(*given, **options)
        inside += clock(model.device) - start
        return result

    gradients = [(torch.autograd, "backward"), (torch.autograd, "grad")]
    with _wrapped([*((model, name) for name in _ENCODERS), *gradients, (features, "apply_view_plan")], timed):
        start = clock(model.device)
        method.adapt(images)
        return (clock(model.device) - start) / inside - 1


@contextlib.contextmanager
def _wrapped(places: Sequence[tuple[Any, str]], wrap: Callable[..., object]) -> Iterator[None]:
    """Let `wrap` be called in the place of functions, with the name of the function, itself and what it is given."""
    with contextlib.ExitStack() as stack:
        for owner, name in places:
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, partial(wrap, name, getattr(owner, name))))
        yield


def _trainable(method: TrainedMethod) -> tuple[ImageModel, list[nn.Parameter]]:
    """A copy of the method's model to train, in which BatchNorm itself takes the statistics of a pass."""
    model, adapted = adaptable_copy(method.classifier.model, text=method.adapts_text)
    for layer in model.image_encoder.modules() if method.uses_batch_statistics else ():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.running_mean = layer.running_var = None
    return model, list(adapted.values())


def _replay(model: ImageModel, adapted: Sequence[nn.Parameter], passes: Sequence[Pass]) -> None:
    for encode, inputs, with_gradient in passes:
        with torch.set_grad_enabled(with_gradient):
            encoded = cast(Tensor, getattr(model, encode)(*inputs))
        if with_gradient:
            encoded.mean().backward()
    for each in (*adapted, *(given for _, inputs, _ in passes for given in inputs)):
        each.grad = None
