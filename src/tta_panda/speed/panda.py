"""What Panda adds to the time of each method, to one percent."""

from __future__ import annotations

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
_KINDS: dict[str, dict[str, Any]] = {
    "fixed": {"beta": 0.5},  # as in the paper; any number costs the same
    "auto": {},
    "between": {"refresh_every": _REFRESH_EVERY},
}
_TITLES = {"fixed": "x plain", "auto": "beta auto", "refreshed": "refreshed"}


def measure_panda(settings: Settings, advance: Advance) -> Report:
    """A row per method: its time with Panda over that without, and with negatives that are drawn now and then only."""
    note = (
        "x plain: with Panda and a fixed beta over without Panda. beta auto: the same where beta is decided for every "
        f"batch. refreshed: that with refresh_every={_REFRESH_EVERY}. Without --rounds, all take turns until margins "
        f"are below {_PRECISION}, or {_MOST_ROUNDS} times."
    )
    return for_each_method(_measure, settings, advance, [note])


def _measure(name: str, classifier: Classifier, images: Tensor, settings: Settings, advance: Advance) -> Row:
    methods = {kind: create_method(f"{name}+panda", classifier, **options) for kind, options in _KINDS.items()}
    methods["plain"] = create_method(name, classifier)
    before = {kind: standing(method, images) for kind, method in methods.items()}
    ways = {kind: partial(method.adapt, images) for kind, method in methods.items()}

    def is_enough(taken: Timings) -> bool:
        if settings.rounds is not None or len(taken.seconds["plain"]) < _FEWEST_ROUNDS:
            return False
        timings = _with_refreshed(taken, settings)
        return all(timings.ratio(kind, "plain").margin <= _PRECISION for kind in _TITLES)

    rounds = settings.rounds or _MOST_ROUNDS
    timings = _with_refreshed(take_turns(ways, rounds, advance, settings.device, before, is_enough), settings)
    row: Row = {"ms": 1000 * timings.of("plain").median, "rounds": len(timings.seconds["plain"])}
    for place, (kind, title) in enumerate(_TITLES.items()):
        row[title], row["±" + "'" * place] = timings.ratio(kind, "plain")
    return row


def _with_refreshed(timings: Timings, settings: Settings) -> Timings:
    """With the mean of the batches that draw negatives and those that do not."""
    timings.combine("refreshed", {"auto": 1 / _REFRESH_EVERY, "between": 1 - 1 / _REFRESH_EVERY})
    return timings.by(settings.clock)
