"""The runs of several experiments, each once, and what makes their records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tta_panda.evaluation.record import RunConfig
from tta_panda.evaluation.run import Runner
from tta_panda.evaluation.store import RunStore
from tta_panda.experiments.base import Experiment
from tta_panda.experiments.setup import Setup


class Work(NamedTuple):
    """Runs that are made in one way: together, or each alone and timed."""

    setup: Setup
    alone: bool
    runs: list[RunConfig]
    runner: Runner

    def diverged(self) -> dict[str, RunConfig]:
        return self.runner.store.diverged(self.runs)

    def missing(self) -> dict[str, RunConfig]:
        settled = {*self.runner.store.existing(self.runs), *self.diverged()}
        return {config.key: config for config in self.runs if config.key not in settled}

    def rows(self, missing: Collection[str]) -> list[dict[str, Any]]:
        """What is to be run, given by its keys, and what exists, for people to read."""
        return [
            {
                "record": config.key,
                "exists": config.key not in missing,
                "method": str(config.method_name),
                "corruption": config.corruption,
                "seed": config.seed,
                "batch": config.batch_size,
                "images": config.limit or "all",
                "alone": self.alone,
                "options": config.options,
            }
            for config in self.runs
        ]


def divide_work(
    experiments: Sequence[Experiment],
    setups: Sequence[Setup],
    records: Path,
    make_runner: Callable[[RunStore, Sequence[RunConfig]], Runner],
) -> list[Work]:
    """What may share passes and cores first, then what is timed.

    Timed runs have a folder of records to themselves: the same run may exist in the other one, made in company.
    """
    works = []
    for alone, setup in itertools.product((False, True), setups):
        own = [experiment for experiment in experiments if experiment.measured_alone == alone]
        if not own:
            continue
        runs = list({config.key: config for experiment in own for config in experiment.runs(setup)}.values())
        runner = make_runner(RunStore(records / "alone" if alone else records), runs)
        runner.alone, runner.keep_going = alone, True
        runner.workers = 1 if alone else runner.workers
        works.append(Work(setup, alone, runs, runner))
    return works
