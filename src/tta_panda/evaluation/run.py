"""The runs that a folder of records lacks, made by an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from tta_panda.errors import DataError, StoreError, UnsupportedModelError, WorkerError
from tta_panda.evaluation.config import RunConfig, by_stream
from tta_panda.evaluation.evaluator import Evaluator
from tta_panda.evaluation.outcome import Outcome
from tta_panda.evaluation.record import FailedRun
from tta_panda.evaluation.store import RunStore
from tta_panda.executors import Executor, Report
from tta_panda.methods import METHODS, register_targets, registered_targets
from tta_panda.methods.trained import TrainedMethod

Task = Sequence[RunConfig]
"""Runs on one stream, which share encoder passes as far as they can."""

Advance = Callable[[Task, float], None]
"""Called with runs, and the share of their work that was just done."""


@dataclass
class Runner:
    """Makes the records that the store does not hold.

    What the model cannot serve, what cannot be read, what diverges and what fails is left out and named in the outcome.
    That a run diverged is remembered beside the records, so that it is not made again.

    Args:
        store: where records are kept.
        evaluator: what makes them.
        executor: where it does so.
    """

    store: RunStore
    evaluator: Evaluator
    executor: Executor

    def missing(self, configs: Sequence[RunConfig]) -> list[RunConfig]:
        """The runs of which nothing is known yet."""
        settled = {*self.store.existing(configs), *self.store.divergences(configs)}
        return [config for config in configs if config.key not in settled]

    def run(self, configs: Sequence[RunConfig], advance: Advance = lambda _configs, _share: None) -> Outcome:
        """Make what is missing of these runs. What is finished is saved at once."""
        self.store.prepare()
        outcome = Outcome(self.store.existing(configs), diverged=self.store.divergences(configs))
        outcome.existed = len(outcome.records)
        settled = {*outcome.records, *outcome.diverged}
        if settled:
            advance([config for config in configs if config.key in settled], 1.0)
        for made in self._make([config for config in configs if config.key not in settled], advance):
            outcome.merge(made)
        if not outcome.records and outcome.unavailable:
            raise UnsupportedModelError("\n".join(dict.fromkeys(outcome.unavailable.values())))
        if not outcome.records and outcome.unreadable:
            raise DataError(next(iter(outcome.unreadable.values())))
        outcome.records = {c.key: outcome.records[c.key] for c in configs if c.key in outcome.records}
        return outcome

    def _make(self, configs: Sequence[RunConfig], advance: Advance) -> Iterator[Outcome]:
        own_methods = registered_targets({config.method.parsed.base for config in configs})
        tasks: list[list[RunConfig]] = [[config] for config in configs] if self.evaluator.timed else divide(configs)
        with closing(self.executor.run(partial(_evaluate, self.evaluator, own_methods), tasks, advance)) as finished:
            for task, result in finished:
                if isinstance(result, StoreError | WorkerError):
                    yield Outcome(failed={config.key: FailedRun.of(config, result) for config in task})
                else:
                    self._save(result)
                    yield result

    def _save(self, outcome: Outcome) -> None:
        for record in outcome.records.values():
            self.store.save(record)
        for each in outcome.diverged.values():
            self.store.save_divergence(each)


def divide(configs: Iterable[RunConfig]) -> list[list[RunConfig]]:
    """Runs in tasks that share nothing: of each stream, methods that train the encoder one by one, and all others."""
    tasks = []
    for members in by_stream(configs).values():
        frozen = [config for config in members if not _trains(config)]
        tasks += ([frozen] if frozen else []) + [[config] for config in members if _trains(config)]
    return tasks


def _trains(config: RunConfig) -> bool:
    return issubclass(METHODS.get(config.method.parsed.base), TrainedMethod)


def _evaluate(evaluator: Evaluator, own_methods: Mapping[str, str | None], task: Task, report: Report) -> Outcome:
    """Evaluate runs where methods of the user's own may not be registered yet."""
    register_targets({name: target for name, target in own_methods.items() if name not in METHODS})
    return evaluator.evaluate(task, report)
