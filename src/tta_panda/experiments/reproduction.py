"""The experiments of a command: their runs, each once, and what came out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tta_panda.evaluation.config import RunConfig
from tta_panda.evaluation.run import Runner
from tta_panda.evaluation.store import RunStore
from tta_panda.experiments.base import Experiment
from tta_panda.experiments.setup import Setup


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
