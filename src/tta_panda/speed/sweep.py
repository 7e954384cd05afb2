"""How long many results take that share encoder passes, beside a single run."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tta_panda.data import load_data
from tta_panda.data.stream import Stream
from tta_panda.errors import UnknownNameError
from tta_panda.evaluation.loop import run_stream
from tta_panda.methods import create_method
from tta_panda.methods.cache import FeatureCache
from tta_panda.models import Classifier, load_model, make_classifier
from tta_panda.speed.measure import Advance, Report, Row, Settings, take_turns

_BETAS = tuple(tenth / 10 for tenth in range(1, 11))
_BATCHES, _ROUNDS = 6, 7

Batches = list[tuple[Tensor, Tensor]]


class Sweep(NamedTuple):
    """Methods that are run together, plain and with every beta, and the single run that they are compared with."""

    methods: tuple[str, ...]
    beside: str = "clip+panda"
    betas: tuple[float, ...] = _BETAS
    most_images: int | None = None
    """Of those whose views take long, one batch of at most this many."""


_SWEEPS = (
    *(Sweep((name,)) for name in ("clip", "dmn", "tda", "oga", "stata")),
    Sweep(("clip", "dmn", "tda")),
    Sweep(("clip", "dmn", "tda", "oga", "stata")),
    Sweep(("zero", "tps", "tpt"), beside="zero+panda", betas=(0.5,), most_images=10),
)


def measure_sweep(settings: Settings, advance: Advance) -> Report:
    """A row for each sweep: how many runs it has, and how many times as long it takes as one; also from a cache."""
    sweeps = [each for each in _SWEEPS if not settings.methods or set(each.methods) <= set(settings.methods)]
    if not sweeps:
        known = {name for each in _SWEEPS for name in each.methods}
        raise UnknownNameError("method of a sweep", ", ".join(settings.methods), known)
    classifier, batches = _workload(settings)
    with tempfile.TemporaryDirectory() as folder:
        cache = FeatureCache(folder, classifier.model)
        rows = [
            _measure(each, settings, classifier, batches, cache, lambda done: advance(done / len(sweeps)))
            for each in sweeps
        ]
    notes = [
        f"{_BATCHES} batches of {settings.batch_size} images, {settings.classes} classes, {settings.model}, "
        f"{torch.get_num_threads()} thread(s). Runs are plain and with {len(_BETAS)} betas; those with "
        f"{settings.views} views plain and with one, on {_SWEEPS[-1].most_images} images."
    ]
    return Report(rows, notes)


def _workload(settings: Settings) -> tuple[Classifier, Batches]:
    """A classifier, and foggy symbols with labels in its range."""
    model = load_model(settings.model, device=settings.device)
    data = load_data("glyphs-val-c", "fog", limit=_BATCHES * settings.batch_size)
    names = data.class_names if settings.classes == len(data.class_names) else map(str, range(settings.classes))
    stream = Stream(data, settings.batch_size)
    return make_classifier(model, names), [(images, labels % settings.classes) for images, labels in stream]


def _measure(
    sweep: Sweep,
    settings: Settings,
    classifier: Classifier,
    batches: Batches,
    cache: FeatureCache,
    advance: Advance,
) -> Row:
    options: dict[str, Any] = {}
    if sweep.most_images is not None:
        options = {"views": settings.views, "augmentation": "crops"}
        batches = [(images[: sweep.most_images], labels[: sweep.most_images]) for images, labels in batches[:1]]
    several = [create_method(name, classifier, **options) for name in sweep.methods]
    several += [
        create_method(f"{name}+panda", classifier, beta=beta, **options)
        for name in sweep.methods
        for beta in sweep.betas
    ]
    one = create_method(sweep.beside, classifier, beta=0.5, **options)
    ways = {
        "one": partial(run_stream, [one], batches),
        "sweep": partial(run_stream, several, batches),
        "cached": partial(run_stream, several, batches, cache=cache),
    }
    timings = take_turns(ways, settings.rounds or _ROUNDS, advance, settings.device)
    times_one = timings.ratio("sweep", "one")
    return {
        "methods": ", ".join(sweep.methods),
        "runs": len(several),
        "beside": sweep.beside,
        "ms": 1000 * timings.of("one").median,
        "times that": times_one.median,
        "±": times_one.margin,
        "by processor time": timings.processor_ratio("sweep", "one").median,
        "from a cache": timings.ratio("cached", "one").median,
    }
