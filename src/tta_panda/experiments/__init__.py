"""Tables and figures by name, the paper's and some beyond it: which runs each needs, and how it is laid out."""

from __future__ import annotations

from collections.abc import Iterable

from tta_panda.errors import UnknownNameError
from tta_panda.experiments import base, figures, tables  # noqa: F401  (each registers its experiments)
from tta_panda.experiments.base import Experiment

EXPERIMENTS = {
    each.name: each
    for each in sorted(base.EXPERIMENTS.values(), key=lambda each: (not each.in_paper, each.name.startswith("fig-")))
}
"""By name: those of the paper first, and tables before figures."""

_ANYWHERE = [name for name, each in EXPERIMENTS.items() if not each.defaults]

SELECTIONS = {
    "all": _ANYWHERE,
    "paper": [name for name in _ANYWHERE if EXPERIMENTS[name].in_paper],
    "beyond": [name for name in _ANYWHERE if not EXPERIMENTS[name].in_paper],
}
"""Names for several experiments at once; those that bring data or a model of their own have to be named."""


def select_experiments(names: Iterable[str]) -> list[Experiment]:
    """The experiments that names stand for, each once; a name may be a selection."""
    chosen = [each for name in names for each in SELECTIONS.get(name, [name])]
    for name in chosen:
        if name not in EXPERIMENTS:
            raise UnknownNameError("experiment", name, EXPERIMENTS)
    return [EXPERIMENTS[name] for name in dict.fromkeys(chosen)]
