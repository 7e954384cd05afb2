"""The experiments of a command: their runs, each once, and what came out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.outcome import Outcome
from tta_panda.evaluation.record import RunRecord
from tta_panda.evaluation.run import Runner
from tta_panda.evaluation.store import RunStore
from tta_panda.experiments.base import Experiment, Result
from tta_panda.experiments.paper import BACKBONES
from tta_panda.experiments.setup import BEST_OF_GRID, Setup
from tta_panda.reporting.tables import side_by_side

_BETA_NOTES = {
    "auto": "Beta is auto: chosen from the stream without labels, by the same rule for every corruption.",
    "paper": "Beta is the paper's for each method, which its authors chose as the best of a grid on test labels.",
    "grid": f"Beta is searched as in the paper ({BEST_OF_GRID}); beside it stands auto, which needs no labels. Where "
    "there is one number only, it is auto's.",
}


class Work(NamedTuple):
    """Runs that are made in one way: sharing passes, or each alone and timed."""

    setup: Setup
    runs: list[RunConfig]
    runner: Runner

    def rows(self, missing: Sequence[RunConfig]) -> list[dict[str, Any]]:
        """What is to be run and what exists, for people to read."""
        keys = {config.key for config in missing}
        return [
            {
                "record": config.key,
                "exists": config.key not in keys,
                "run": str(config),
                "stream": config.stream.title(),
                "timed": self.runner.evaluator.timed,
                "options": dict(config.method.options),
            }
            for config in self.runs
        ]


def divide_work(
    experiments: Sequence[Experiment],
    setups: Sequence[Setup],
    records: Path,
    make_runner: Callable[[RunStore, Setup, Sequence[RunConfig], bool], Runner],
) -> list[Work]:
    """What may share passes and cores first, then what is timed.

    Timed runs have a folder of records to themselves: the same run may exist in the other one, made while sharing
    encoder passes.
    """
    works = []
    for timed, setup in itertools.product((False, True), setups):
        own = [experiment for experiment in experiments if experiment.timed == timed]
        if not own:
            continue
        runs = list({config.key: config for experiment in own for config in experiment.runs(setup)}.values())
        store = RunStore(records / "timed" if timed else records)
        works.append(Work(setup, runs, make_runner(store, setup, runs, timed)))
    return works


@dataclass(frozen=True)
class Reproduction:
    """An experiment that was run."""

    name: str
    experiment: Experiment
    runs: Sequence[RunConfig]
    records: Mapping[str, RunRecord]
    result: Result

    @classmethod
    def of(cls, name: str, experiment: Experiment, setup: Setup, outcome: Outcome) -> Reproduction:
        """From whatever records there are; cells without one say so."""
        runs = experiment.runs(setup)
        own = {config.key: outcome.records[config.key] for config in runs if config.key in outcome.records}
        return cls(name, experiment, runs, own, experiment.evaluate(setup, own, outcome.diverged))


def across_benchmarks(benchmarks: Mapping[str, Sequence[Reproduction]]) -> list[Reproduction]:
    """The experiments that the paper shows for several benchmarks side by side."""
    compared = []
    for several in zip(*benchmarks.values(), strict=True):
        first = several[0]
        if first.experiment.compares_benchmarks:
            tables = {name: each.result.tables[0] for name, each in zip(benchmarks, several, strict=True)}
            runs = [config for each in several for config in each.runs]
            records = {key: record for each in several for key, record in each.records.items()}
            result = Result([side_by_side(tables)])
            compared.append(Reproduction(first.name, first.experiment, runs, records, result))
    return compared


def setup_notes(setup: Setup) -> list[str]:
    """What holds for all numbers of a setup."""
    if setup.benchmark is None:
        paper = (
            "The paper has no numbers for this setting. What it printed for its own benchmarks stands in tables of its "
            "own, marked as the paper's."
        )
    else:
        paper = (
            f"What the paper printed for {BACKBONES[setup.benchmark]} stands under our numbers, marked “paper”. With "
            "Panda, its beta was the best of a grid, chosen on test labels."
        )
    return [f"{setup}.", paper, _BETA_NOTES.get(str(setup.beta), f"Beta is {setup.beta} throughout.")]
