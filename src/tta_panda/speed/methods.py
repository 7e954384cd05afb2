"""How close methods come to the encoder passes that they cannot avoid."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from tta_panda.methods import create_method
from tta_panda.methods.base import Method
from tta_panda.methods.features import IMAGES_PER_PASS, Features
from tta_panda.models import Classifier
from tta_panda.speed.measure import Advance, Report, Row, Settings, Spread, take_turns
from tta_panda.speed.workload import bare_passes, for_each_method, share_outside, standing
from tta_panda.views import apply_view_plan, sample_view_plan

_ROUNDS = 7


def measure_methods(settings: Settings, advance: Advance) -> Report:
    """A row per method, plain and with Panda: its time over that of bare passes, and its share outside of passes."""
    notes = [
        "x limit: over the same encoder passes (and views) alone.",
        "outside: time outside encoders, backward passes and views, as a share of that inside, of the same call.",
    ]
    return for_each_method(_measure, settings, advance, notes)


def _measure(name: str, classifier: Classifier, images: Tensor, settings: Settings, advance: Advance) -> Row:
    methods = {title: create_method(full, classifier) for title, full in (("", name), ("+panda: ", f"{name}+panda"))}
    ways: dict[str, Callable[[], object]] = {}
    before: dict[str, Callable[[], object]] = {}
    for kind, method in methods.items():
        before[kind] = standing(method, images)
        ways[kind] = partial(method.adapt, images)
        ways[f"{kind}passes"] = bare_passes(method, images)
    features = methods[""].features
    ways["views"] = partial(_make_views, features, images) if features.views else lambda: None
    rounds = settings.rounds or _ROUNDS
    timings = take_turns(ways, rounds, advance, settings.device, before)
    for kind in methods:
        timings.combine(f"{kind}limit", {f"{kind}passes": 1, "views": 1})
    timings = timings.by(settings.clock)
    row: Row = {"ms": 1000 * timings.of("").median, "views: ms": 1000 * timings.of("views").median}
    for place, (kind, method) in enumerate(methods.items()):
        row[f"{kind}x limit"], row["±" + "'" * place] = timings.ratio(kind, f"{kind}limit")
        row[f"{kind}outside (%)"] = _percent_outside(method, images, before[kind], rounds)
    return row


def _percent_outside(method: Method, images: Tensor, bring_back: Callable[[], object], rounds: int) -> float:
    """What a method spends beside its passes, as a share of these."""
    shares = []
    for _ in range(rounds):
        bring_back()
        shares.append(100 * share_outside(method, images))
    return Spread.of(shares).median


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
