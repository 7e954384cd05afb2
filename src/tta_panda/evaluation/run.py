"""Make the records that a folder lacks."""

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
    """The records of some runs, and the runs without one, by key."""

    records: dict[str, RunRecord] = field(default_factory=dict)
    failures: dict[str, FailedRun] = field(default_factory=dict)
    existed: int = 0
    """Number of records that had been made before."""

    @property
    def diverged(self) -> dict[str, FailedRun]:
        return {key: run for key, run in self.failures.items() if run.status == "diverged"}

    def missing(self) -> list[dict[str, str]]:
        """What has no record, as rows: what it is, what became of it, and why."""
        rows = [(run.subject, run.status, run.message, run.traceback) for run in self.failures.values()]
        return [dict(zip(("what", "status", "reason", "traceback"), row, strict=True)) for row in dict.fromkeys(rows)]


def find_runs(configs: Sequence[RunConfig], store: RunStore) -> Outcome:
    """The runs that have a record already, or are known to diverge."""
    records = store.existing(configs)
    return Outcome(records, store.divergences(configs), len(records))


def make_runs(
    configs: Sequence[RunConfig],
    store: RunStore,
    evaluator: Evaluator,
    executor: Executor,
    report: Callable[[Sequence[RunConfig], float], None] = lambda _configs, _share: None,
) -> Outcome:
    """Evaluate the runs that have no record yet; each record is saved as soon as it is made.

    A run that diverged is remembered beside the records, so that it is not made again.

    Args:
        report: called with runs, and the share of their work that was just done.

    Raises:
        UnsupportedModelError, DataError: where there is not a single record, because of what the error says.
    """
    store.prepare()
    outcome = find_runs(configs, store)
    known = {*outcome.records, *outcome.failures}
    if known:
        report([config for config in configs if config.key in known], 1.0)
    missing = [config for config in configs if config.key not in known]
    tasks = [[config] for config in missing] if evaluator.timed else divide(missing)
    own_methods = registered_targets({config.method.parsed.base for config in missing})
    with closing(executor.run(partial(_evaluate, evaluator, own_methods), tasks, report)) as finished:
        for task, results in finished:
            if isinstance(results, StoreError | WorkerError):
                results = [FailedRun.of(config, "failed", results) for config in task]
            for result in results:
                if isinstance(result, RunRecord):
                    store.save(result)
                    outcome.records[result.config.key] = result
                    continue
                outcome.failures[result.config.key] = result
                if result.status == "diverged":
                    store.save_divergence(result)
    if not outcome.records:
        _raise_common_reason(outcome.failures.values())
    outcome.records = {c.key: outcome.records[c.key] for c in configs if c.key in outcome.records}
    return outcome


def _raise_common_reason(failures: Iterable[FailedRun]) -> None:
    """Raise why not a single run has a record, where the user can do something about it."""
    unavailable = dict.fromkeys(run.message for run in failures if run.status == "unavailable")
    if unavailable:
        raise UnsupportedModelError("\n".join(unavailable))
    for run in failures:
        if run.status == "unreadable":
            raise DataError(run.message)


def _evaluate(
    evaluator: Evaluator, own_methods: Mapping[str, str | None], task: Sequence[RunConfig], report: Report
) -> list[RunRecord | FailedRun]:
    """Evaluate runs in a process where methods of the user's own may not be registered yet."""
    register_targets({name: target for name, target in own_methods.items() if name not in METHODS})
    return evaluator.evaluate(task, report)


GRADIENT = 3
"""Cost of a pass with gradient, in passes without: forward, and backward at twice the cost."""


def count_encoded(task: Sequence[RunConfig], sources: Sources) -> tuple[int, int]:
    """Images and texts that runs on one stream encode; those with a gradient count three times.

    Methods of a task share the passes over images, so that the costliest one decides. Neither model nor published
    data need be there.
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


def divide(configs: Iterable[RunConfig]) -> list[list[RunConfig]]:
    """Runs in tasks that share nothing: of each stream, methods that train the encoder one by one, and all others."""
    tasks = []
    for members in by_stream(configs).values():
        frozen = [config for config in members if not _trains(config)]
        tasks += ([frozen] if frozen else []) + [[config] for config in members if _trains(config)]
    return tasks


def _trains(config: RunConfig) -> bool:
    return issubclass(METHODS.get(config.method.parsed.base), TrainedMethod)
