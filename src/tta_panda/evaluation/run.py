"""Evaluate the runs whose records are missing in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from tta_panda.errors import DataError, StoreError, UnsupportedModelError, WorkerError
from tta_panda.evaluation.config import RunConfig, by_stream
from tta_panda.evaluation.evaluator import Evaluator
from tta_panda.evaluation.plan import Sources, data_size
from tta_panda.evaluation.record import FailedRun, RunRecord
from tta_panda.evaluation.store import RunStore
from tta_panda.executors import Executor, Report
from tta_panda.methods import METHODS, register_targets, registered_targets
from tta_panda.methods.factory import expected_passes
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models import TEMPLATES


@dataclass
class Outcome:
    """Records of runs, and runs without one, by key."""

    records: dict[str, RunRecord] = field(default_factory=dict)
    failures: dict[str, FailedRun] = field(default_factory=dict)
    existed: int = 0
    """Number of records that existed before."""

    @property
    def diverged(self) -> dict[str, FailedRun]:
        return {key: run for key, run in self.failures.items() if run.status == "diverged"}

    def missing(self) -> list[dict[str, str]]:
        """Runs without a record as rows: subject, status, reason and traceback."""
        rows = [(run.subject, run.status, run.message, run.traceback) for run in self.failures.values()]
        return [dict(zip(("what", "status", "reason", "traceback"), row, strict=True)) for row in dict.fromkeys(rows)]


def find_runs(configs: Sequence[RunConfig], store: RunStore) -> Outcome:
    """Find the runs that already have a record or are known to diverge."""
    records = store.existing(configs)
    return Outcome(records, store.divergences(configs), len(records))


def make_runs(
    configs: Sequence[RunConfig],
    store: RunStore,
    evaluator: Evaluator,
    executor: Executor,
    report: Callable[[Sequence[RunConfig], float], None] = lambda _configs, _share: None,
    log: Callable[[RunRecord], None] = lambda _record: None,
) -> Outcome:
    """Evaluate the runs that have no record yet; save each record as soon as it is made.

    Runs that diverged are stored next to the records, so that they are not repeated.

    Args:
        report: called with runs, and the share of their work that was just done.
        log: called with each new record, once it is saved.

    Raises:
        UnsupportedModelError, DataError: if no run has a record for the reason in the message.
    """
    store.prepare()
    outcome = find_runs(configs, store)
    known = {*outcome.records, *outcome.failures}
    if known:
        report([config for config in configs if config.key in known], 1.0)
    missing = [config for config in configs if config.key not in known]
    tasks = [[config] for config in missing] if evaluator.timed else divide_into_tasks(missing)
    user_methods = registered_targets({config.method.parsed.base for config in missing})
    with closing(executor.run(partial(_evaluate, evaluator, user_methods), tasks, report)) as finished:
        for task, results in finished:
            if isinstance(results, StoreError | WorkerError):
                results = [FailedRun.of(config, "failed", results) for config in task]
            for result in results:
                if isinstance(result, RunRecord):
                    store.save(result)
                    outcome.records[result.config.key] = result
                    log(result)
                    continue
                outcome.failures[result.config.key] = result
                if result.status == "diverged":
                    store.save_divergence(result)
    if not outcome.records:
        _raise_common_reason(outcome.failures.values())
    outcome.records = {c.key: outcome.records[c.key] for c in configs if c.key in outcome.records}
    return outcome


def _raise_common_reason(failures: Iterable[FailedRun]) -> None:
    """Raise the reason why no run has a record, if it is one that the user can correct."""
    unavailable = dict.fromkeys(run.message for run in failures if run.status == "unavailable")
    if unavailable:
        raise UnsupportedModelError("\n".join(unavailable))
    for run in failures:
        if run.status == "unreadable":
            raise DataError(run.message)


def _evaluate(
    evaluator: Evaluator, user_methods: Mapping[str, str | None], task: Sequence[RunConfig], report: Report
) -> list[RunRecord | FailedRun]:
    """Evaluate runs in a process where user-defined methods may not be registered yet."""
    register_targets({name: target for name, target in user_methods.items() if name not in METHODS})
    return evaluator.evaluate(task, report)


GRADIENT = 3
"""Cost of a pass with gradient relative to one without: a backward pass costs twice as much as a forward pass."""


def count_encoded(task: Sequence[RunConfig], sources: Sources) -> tuple[int, int]:
    """Count the images and texts that runs on one stream encode; those with a gradient count three times.

    Methods of a task share the passes over images, so only the costliest one counts. Neither the model nor published
    data have to be available.
    """
    stream = task[0].stream
    in_domain, classes = data_size(stream, sources)
    batches = in_domain * len(stream.visits) / stream.batch_size
    images, texts = 0, 0
    for config in task:
        passes = expected_passes(
            config.method.parsed,
            dict(config.method.options),
            stream.batch_size,
            classes,
            len(TEMPLATES.get(stream.templates)),
        )
        images = max(images, passes.images + GRADIENT * passes.images_with_gradient)
        texts += passes.texts + GRADIENT * passes.texts_with_gradient
    return round(batches * images), round(batches * texts)


def divide_into_tasks(configs: Iterable[RunConfig]) -> list[list[RunConfig]]:
    """Divide runs into independent tasks: each run that trains the encoder, and all others on the same stream."""
    tasks = []
    for members in by_stream(configs).values():
        frozen = [config for config in members if not _trains(config)]
        tasks += ([frozen] if frozen else []) + [[config] for config in members if _trains(config)]
    return tasks


def _trains(config: RunConfig) -> bool:
    return issubclass(METHODS.get(config.method.parsed.base), TrainedMethod)
