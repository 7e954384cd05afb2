"""What Panda adds to the time of each method, to one percent."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from tta_panda.methods import create_method
from tta_panda.models import Classifier
from tta_panda.speed.measure import Advance, Report, Row, Settings, Timings, take_turns
from tta_panda.speed.workload import for_each_method, standing

_FEWEST_ROUNDS, _MOST_ROUNDS = 20, 300
_PRECISION = 0.01  # rounds go on until all margins are below this
_REFRESH_EVERY = 10
_RATIOS = {"x plain": ("panda", "plain"), "x plain, refreshed": ("refreshed", "plain")}


def measure_panda(settings: Settings, advance: Advance) -> Report:
    """A row per method: its time with Panda over that without, and with negatives that are drawn now and then only."""
    note = (
        f"x plain: with Panda over without. x plain, refreshed: with refresh_every={_REFRESH_EVERY}. Without --rounds, "
        f"both take turns until margins are below {_PRECISION}, or {_MOST_ROUNDS} times."
    )
    return for_each_method(_measure, settings, advance, [note])


def _measure(name: str, classifier: Classifier, images: Tensor, settings: Settings, advance: Advance) -> Row:
    refresh: dict[str, Any] = {"refresh_every": _REFRESH_EVERY}
    kinds = {"plain": (name, {}), "panda": (f"{name}+panda", {}), "between": (f"{name}+panda", refresh)}
    ways: dict[str, Callable[[], object]] = {}
    before: dict[str, Callable[[], object]] = {}
    for kind, (full, options) in kinds.items():
        method = create_method(full, classifier, **options)
        before[kind] = standing(method, images)
        ways[kind] = partial(method.adapt, images)

    def is_enough(taken: Timings) -> bool:
        if settings.rounds is not None or len(taken.seconds["plain"]) < _FEWEST_ROUNDS:
            return False
        timings = _with_refreshed(taken, settings)
        return all(timings.ratio(*pair).margin <= _PRECISION for pair in _RATIOS.values())

    rounds = settings.rounds or _MOST_ROUNDS
    timings = _with_refreshed(take_turns(ways, rounds, advance, settings.device, before, is_enough), settings)
    row: Row = {"ms": 1000 * timings.of("plain").median, "rounds": len(timings.seconds["plain"])}
    for place, (title, pair) in enumerate(_RATIOS.items()):
        row[title], row["±" + "'" * place] = timings.ratio(*pair)
    return row


def _with_refreshed(timings: Timings, settings: Settings) -> Timings:
    """With the mean of the batches that draw negatives and those that do not."""
    timings.combine("refreshed", {"panda": 1 / _REFRESH_EVERY, "between": 1 - 1 / _REFRESH_EVERY})
    return timings.by(settings.clock)
