"""Registry of experiments: tables and figures of the paper, and others."""

from __future__ import annotations

from collections.abc import Iterable

from tta_panda.errors import UnknownNameError
from tta_panda.experiments import base, figures, tables  # noqa: F401  (each registers its experiments)
from tta_panda.experiments.base import Experiment

EXPERIMENTS = {
    each.name: each
    for each in sorted(base.EXPERIMENTS.values(), key=lambda each: (not each.in_paper, each.name.startswith("fig-")))
}
"""Experiments by name: those of the paper first, and tables before figures."""

_WITHOUT_DEFAULTS = [name for name, each in EXPERIMENTS.items() if not each.defaults]

SELECTIONS = {
    "all": _WITHOUT_DEFAULTS,
    "paper": [name for name in _WITHOUT_DEFAULTS if EXPERIMENTS[name].in_paper],
    "beyond": [name for name in _WITHOUT_DEFAULTS if not EXPERIMENTS[name].in_paper],
}
"""Names that stand for several experiments; those with their own data or model have to be named."""


def select_experiments(names: Iterable[str]) -> list[Experiment]:
    """Select experiments by name, each once; a name may also be a selection."""
    chosen = [each for name in names for each in SELECTIONS.get(name, [name])]
    for name in chosen:
        if name not in EXPERIMENTS:
            raise UnknownNameError("experiment", name, EXPERIMENTS)
    return [EXPERIMENTS[name] for name in dict.fromkeys(chosen)]
