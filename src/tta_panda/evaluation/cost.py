"""What runs cost in encoder passes, counted in one batch with the embedded model and data.

A method sends as much through the encoders of any other model. So neither model nor data of the runs need be there, and
no list has to say what methods do.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

from torch import Tensor

from tta_panda.data import DATASETS, load_data
from tta_panda.data.source import Size
from tta_panda.data.stream import Stream
from tta_panda.evaluation.config import EMBEDDED, MethodConfig, RunConfig, StreamConfig
from tta_panda.evaluation.loop import run_stream, shared_passes
from tta_panda.evaluation.plan import Sources
from tta_panda.methods.base import FrozenMethod, Method
from tta_panda.methods.factory import build_method
from tta_panda.models import Classifier, ImageModel, load_model, make_classifier
from tta_panda.models.arithmetic import text_cost

GRADIENT = 3.0
"""A pass with a gradient, in passes without: forwards, and backwards at twice the cost."""

_DATA, _CORRUPTION = "glyphs-val-c", "gaussian_noise"
_IMAGES, _IMAGES_WITH_VIEWS = 100, 10
"""At most; methods with views do the same with each image."""


@dataclass(frozen=True)
class Passes:
    """What goes through the encoders; a prompt is one text for each class."""

    images: float = 0.0
    images_with_gradient: float = 0.0
    prompts: float = 0.0
    prompts_with_gradient: float = 0.0

    def __add__(self, other: Passes) -> Passes:
        return Passes(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    def __mul__(self, factor: float) -> Passes:
        return Passes(*(factor * each for each in astuple(self)))

    def in_images(self, classes: int, text: float) -> float:
        """The same work in images without a gradient, where a text is worth `text` of them."""
        images = self.images + GRADIENT * self.images_with_gradient
        return images + text * classes * (self.prompts + GRADIENT * self.prompts_with_gradient)


@functools.cache
def passes_per_image(methods: tuple[MethodConfig, ...], batch_size: int) -> Passes:
    """Of methods on one stream, which share passes where they can."""
    built = [_build(config) for config in methods]
    return functools.reduce(
        Passes.__add__, (_count([built[i] for i in group], batch_size) for group in shared_passes(built))
    )


def _count(methods: Sequence[Method], batch_size: int) -> Passes:
    has_views = any(method.features.views for method in methods)
    size = min(batch_size, _IMAGES_WITH_VIEWS if has_views else _IMAGES)
    model, total = methods[0].classifier.model, Passes()
    data = load_data(_DATA, _CORRUPTION, limit=size)
    with _encoded_images(model) as encoded:
        evaluations = run_stream(methods, Stream(data, size))
    for each in evaluations:
        texts = each.passes.texts / len(data.class_names), each.passes.texts_with_gradient / len(data.class_names)
        total += Passes(each.passes.images, each.passes.images_with_gradient, *texts)
    if isinstance(methods[0], FrozenMethod):
        total = replace(total, images=sum(encoded))  # what they share is encoded once
    return total * (1 / len(data))


@contextmanager
def _encoded_images(model: ImageModel) -> Iterator[list[int]]:
    """How many images each pass of a model has."""
    sizes: list[int] = []
    encode = model.encode_image

    def counted(images: Tensor) -> Tensor:
        sizes.append(len(images))
        return encode(images)

    model.encode_image = counted  # type: ignore[method-assign, assignment]
    try:
        yield sizes
    finally:
        del model.encode_image


def _build(config: MethodConfig) -> Method:
    options = dict(config.options)
    if "patch_size" in options:
        options["patch_size"] = None  # meant for larger images; the number of negatives does not depend on it
    return build_method(config.parsed, _embedded_classifier(), options, seed=0)


@functools.cache
def _embedded_classifier() -> Classifier:
    return make_classifier(load_model(EMBEDDED.model), load_data(_DATA).class_names)


class Cost(NamedTuple):
    """What runs on one stream need."""

    per_image: Passes
    in_images: float
    """For all images of the stream, in images that are encoded without a gradient."""


def task_cost(runs: Sequence[RunConfig], sources: Sources) -> Cost:
    """Of runs on one stream, which share passes where they can."""
    stream = runs[0].stream
    size = _size(stream, sources)
    passes = passes_per_image(tuple(config.method for config in runs), stream.batch_size)
    images = size.images * len(stream.visits)
    return Cost(passes, images * passes.in_images(size.classes, text_cost(sources.model)))


def _size(stream: StreamConfig, sources: Sources) -> Size:
    """As the registry says, or as it is on disk."""
    source = DATASETS.get(stream.data)
    if source.size is None:
        corruption, severity = stream.visits[0]
        data = load_data(stream.data, corruption, severity, root=sources.data_root, limit=stream.limit)
        return Size(len(data), len(data.class_names))
    most = stream.limit or source.size.images
    return source.size._replace(images=most if source.embedded else min(most, source.size.images))


def balance(costs: Sequence[float], parts: int) -> list[list[int]]:
    """Indices in so many parts of about equal cost: the costliest first, each to the part that has least so far."""
    divided: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0.0, part) for part in range(parts)]
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        cost, part = heap[0]
        heapq.heapreplace(heap, (cost + costs[index], part))
        divided[part].append(index)
    return [sorted(each) for each in divided]
