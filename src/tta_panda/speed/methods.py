"""How close methods come to the encoder passes that they cannot avoid, and what Panda adds to them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tta_panda.errors import UnsupportedModelError
from tta_panda.methods import METHODS, create_method, parse_method
from tta_panda.methods.base import Method
from tta_panda.methods.features import IMAGES_PER_PASS, Features
from tta_panda.models import Classifier, load_model
from tta_panda.speed.measure import Advance, Report, Row, Settings, Spread, Timings, take_turns
from tta_panda.speed.workload import bare_passes, draw_pictures, make_classes, share_outside, standing
from tta_panda.views import apply_view_plan, sample_view_plan

_FEWEST_ROUNDS, _MOST_ROUNDS = 7, 60
_PRECISION = 0.01  # rounds go on until all margins are below this
_REFRESH_EVERY = 10
_LIMITED = ("plain", "panda")
_RATIOS = {
    "x limit": ("plain", "limit of plain"),
    "+panda: x limit": ("panda", "limit of panda"),
    "x plain": ("panda", "plain"),
    "x plain, refreshed": ("refreshed", "plain"),
}


def measure_methods(settings: Settings, advance: Advance) -> Report:
    """A row per method: its time over that of bare passes, plain and with Panda, and the one over the other."""
    model = load_model(settings.model, settings.device)
    classifier = make_classes(model, settings.classes)
    images = draw_pictures(settings.batch_size, model.image_size)
    names = dict.fromkeys(parse_method(name).base for name in settings.methods or METHODS)
    rows: list[Row] = []
    notes = [
        f"{settings.model}: {settings.batch_size} images, {settings.classes} classes, "
        f"{torch.get_num_threads()} thread(s), medians by {settings.clock}.",
        "x limit: over the same encoder passes (and views) alone. x plain: with Panda over without. "
        f"x plain, refreshed: the same with refresh_every={_REFRESH_EVERY}. Without --rounds, methods take turns until "
        f"all margins are below {_PRECISION}, or {_MOST_ROUNDS} times.",
    ]
    notes.append(
        "outside: time outside encoders, backward passes and views, as a share of that inside, of the same call."
    )
    for name in names:
        try:
            columns = _measure(name, classifier, images, settings, lambda share: advance(share / len(names)))
        except UnsupportedModelError as error:
            notes.append(f"{name} is left out: {error}")
            continue
        rows.append({"method": name, **columns})
    return Report(rows, notes)


def _measure(name: str, classifier: Classifier, images: Tensor, settings: Settings, advance: Advance) -> Row:
    """Of one method: `plain`, `panda` and `refreshed`, beside the limits of the first two."""
    refresh: dict[str, Any] = {"refresh_every": _REFRESH_EVERY}
    kinds = {"plain": (name, {}), "panda": (f"{name}+panda", {}), "between": (f"{name}+panda", refresh)}
    methods = {kind: create_method(full, classifier, **options) for kind, (full, options) in kinds.items()}
    ways: dict[str, Callable[[], object]] = {}
    before: dict[str, Callable[[], object]] = {}
    for kind, method in methods.items():
        before[kind] = standing(method, images)
        ways[kind] = partial(method.adapt, images)
        if kind in _LIMITED:
            ways[f"passes of {kind}"] = bare_passes(method, images)
    features = methods["plain"].features
    ways["views"] = partial(_make_views, features, images) if features.views else lambda: None

    def is_enough(taken: Timings) -> bool:
        return settings.rounds is None and _is_precise(_combined(taken, settings))

    rounds = settings.rounds or _MOST_ROUNDS
    timings = _combined(take_turns(ways, rounds, advance, settings.device, before, is_enough), settings)
    shares = {kind: _percent_outside(methods[kind], images, before[kind]) for kind in _LIMITED}
    return {**_columns(timings), "outside (%)": shares["plain"], "+panda: outside (%)": shares["panda"]}


def _percent_outside(method: Method, images: Tensor, bring_back: Callable[[], object]) -> float:
    """What a method spends beside its passes, as a share of these."""
    shares = []
    for _ in range(_FEWEST_ROUNDS):
        bring_back()
        shares.append(100 * share_outside(method, images))
    return Spread.of(shares).median


def _combined(timings: Timings, settings: Settings) -> Timings:
    """With the limits, and with the mean of the batches that draw negatives and those that do not."""
    for kind in _LIMITED:
        timings.combine(f"limit of {kind}", {f"passes of {kind}": 1, "views": 1})
    timings.combine("refreshed", {"panda": 1 / _REFRESH_EVERY, "between": 1 - 1 / _REFRESH_EVERY})
    return timings.by(settings.clock)


def _is_precise(timings: Timings) -> bool:
    margins = [timings.ratio(*pair).margin for pair in _RATIOS.values()]
    return len(timings.seconds["plain"]) >= _FEWEST_ROUNDS and max(margins) <= _PRECISION


def _make_views(features: Features, images: Tensor) -> None:
    """As `Features` makes them, piece by piece."""
    assert features.views is not None
    model, count = features.classifier.model, features.views.count - 1
    sides = (model.image_size, model.image_size)
    plan = sample_view_plan(features.views.augmentation, images.shape, count, torch.Generator(), sides)
    step = max(1, IMAGES_PER_PASS // max(1, count))
    for start in range(0, len(images), step):
        piece = slice(start, start + step)
        apply_view_plan(images[piece].to(model.device), plan[piece])


def _columns(timings: Timings) -> Row:
    columns: Row = {"ms": 1000 * timings.of("plain").median, "views: ms": 1000 * timings.of("views").median}
    columns["rounds"] = len(timings.seconds["plain"])
    for place, (title, (way, other)) in enumerate(_RATIOS.items()):
        columns[title], columns["±" + "'" * place] = timings.ratio(way, other)
    return columns
