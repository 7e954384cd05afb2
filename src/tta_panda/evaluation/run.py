"""Evaluate runs, with model and data loaded once, and save a record of each in a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from tta_panda.data import load_data
from tta_panda.data.dataset import Dataset
from tta_panda.data.stream import Domains, Stream
from tta_panda.errors import DataError, NumericalError, StoreError, UnsupportedModelError, WorkerError
from tta_panda.evaluation.config import RunConfig, StreamConfig, by_stream
from tta_panda.evaluation.loop import Evaluation, run_stream, warm_up
from tta_panda.evaluation.plan import Sources, data_size
from tta_panda.evaluation.record import SCHEMA, FailedRun, RunRecord, describe_environment
from tta_panda.evaluation.store import RunStore
from tta_panda.executors import Executor, Report, worker_number
from tta_panda.methods import METHODS, register_targets, registered_targets
from tta_panda.methods.base import Method
from tta_panda.methods.factory import build_method, expected_passes
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models import Classifier, ImageModel, load_model, make_classifier
from tta_panda.models.base import framing_of
from tta_panda.models.checkpoints import weights_hash
from tta_panda.models.devices import Backend, Precision, device_of_worker, resolve_device
from tta_panda.models.feature_cache import FeatureCache
from tta_panda.models.prompts import count_prompts

_UNRELATED_TO_IMAGES = (
    *("model", "weights", "precision", "backend", "templates"),
    *("order", "seed", "batch_size", "window"),
)
"""Fields of a stream that do not affect which images it contains. Omitting one here only costs time."""


class Evaluator:
    """Evaluate runs, keeping the model and the last data for the next ones.

    Args:
        sources: where model and data are found.
        device: where the model runs; `auto` for the best one of the machine that runs the evaluation. Workers take
            turns among the GPUs of a machine, unless the device has an index.
        timed: evaluate runs one after another without sharing encoder passes, so that each is timed by itself.
        cache: folder with a cache of encoder passes of frozen methods; timed runs do not use it.
    """

    def __init__(self, sources: Sources, device: str = "cpu", *, timed: bool = False, cache: Path | None = None):
        self.sources = sources
        self.device = device
        self.timed = timed
        self.cache = None if timed else cache
        self.user_methods: Mapping[str, str | None] = {}
        """Where other processes can import methods that were registered in this one."""
        self._models: dict[tuple[str, str], tuple[ImageModel, str, FeatureCache | None]] = {}
        self._classifiers: dict[tuple[object, ...], Classifier] = {}
        self._last_data: dict[StreamConfig, Dataset] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_models": {}, "_classifiers": {}, "_last_data": {}}  # another process loads its own

    def evaluate(self, runs: Sequence[RunConfig], report: Report = lambda _share: None) -> list[RunRecord | FailedRun]:
        """Evaluate runs on one stream; return the record of each, or the reason why it has none."""
        register_targets({name: target for name, target in self.user_methods.items() if name not in METHODS})
        stream = runs[0].stream
        results: list[RunRecord | FailedRun] = []
        members: list[tuple[RunConfig, Method]] = []
        try:
            dataset, classifier = self.load(stream)
            for config in runs:
                try:
                    name, options = config.method.parsed, dict(config.method.options)
                    members.append((config, build_method(name, classifier, options, stream.seed)))
                except UnsupportedModelError as error:
                    results.append(FailedRun.of(config, "unavailable", error))
            report(0.0)  # model and data are loaded
            fit = framing_of(classifier.model) if stream.preprocess == "exact" else None
            data = Stream(dataset, stream.batch_size, stream.seed, fit, stream.order)
            methods = [method for _, method in members]
            if self.timed:
                for method in methods:
                    warm_up(method, next(iter(data))[0])
            _, _, cache = self._model(stream)
            evaluations = run_stream(
                methods, data, window=stream.window, share=not self.timed, report=report, cache=cache
            )
            results += [self._result(config, each) for (config, _), each in zip(members, evaluations, strict=True)]
        except DataError as error:
            done = {each.config.key for each in results}
            results += [FailedRun.of(config, "unreadable", error) for config in runs if config.key not in done]
        return results

    def _result(self, config: RunConfig, evaluation: Evaluation) -> RunRecord | FailedRun:
        try:
            if evaluation.error:
                status = "diverged" if isinstance(evaluation.error, NumericalError) else "failed"
                return FailedRun.of(config, status, evaluation.error)
            _, weights, _ = self._model(config.stream)
            return RunRecord(
                **dict(evaluation.result()),
                schema_number=SCHEMA,
                config=config,
                weights_hash=weights,
                environment=describe_environment(str(evaluation.method.classifier.model.device)),
            )
        finally:
            evaluation.method.reset()  # frees its state

    def load(self, stream: StreamConfig) -> tuple[Dataset | Domains, Classifier]:
        """Load the images of a stream, and the classifier for their classes."""
        defaults = StreamConfig(model="", data=stream.data)
        images = replace(stream, **{name: getattr(defaults, name) for name in _UNRELATED_TO_IMAGES})
        loaded, self._last_data = self._last_data, {}
        domains: dict[str, list[Dataset]] = {}
        for corruption, severity in stream.visits:
            one = replace(images, corruption=corruption, severity=severity)
            if one not in self._last_data:
                self._last_data[one] = loaded.get(one) or self._load_data(one)
            domains.setdefault(corruption, []).append(self._last_data[one])
        first = next(iter(self._last_data.values()))
        key = stream.precision, stream.backend, first.class_names, stream.templates
        if key not in self._classifiers:
            model, _, cache = self._model(stream)
            templates = self.sources.templates or stream.templates
            self._classifiers[key] = make_classifier(model, first.class_names, templates, cache)
        return domains if stream.parsed_order.joins_domains else first, self._classifiers[key]

    def _load_data(self, stream: StreamConfig) -> Dataset:
        return load_data(
            stream.data,
            stream.corruption,
            stream.severity,
            root=self.sources.data_root,
            limit=stream.limit,
            image_list=self.sources.image_list if stream.image_list else None,
            skip_broken=self.sources.skip_broken,
            ignore_orientation=stream.ignore_orientation,
            unknown_classes=stream.unknown,
        )

    def _model(self, stream: StreamConfig) -> tuple[ImageModel, str, FeatureCache | None]:
        """The model, the hash of its weights, and its cache of encoder passes."""
        key = cast(Precision, stream.precision), cast(Backend, stream.backend)
        if key not in self._models:
            device = device_of_worker(resolve_device(self.device), worker_number())
            model = load_model(self.sources.model, device, *key)
            cache = None if self.cache is None else FeatureCache(self.cache, model)
            self._models[key] = model, weights_hash(cast(nn.Module, model)), cache
        return self._models[key]


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
    records = store.existing(configs)
    outcome = Outcome(records, store.divergences(configs), len(records))
    known = {*outcome.records, *outcome.failures}
    if known:
        report([config for config in configs if config.key in known], 1.0)
    missing = [config for config in configs if config.key not in known]
    tasks = [[config] for config in missing] if evaluator.timed else divide_into_tasks(missing)
    evaluator.user_methods = registered_targets({config.method.parsed.base for config in missing})
    with closing(executor.run(evaluator.evaluate, tasks, report)) as finished:
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


GRADIENT = 3
"""Cost of a pass with gradient relative to one without: a backward pass costs twice as much as a forward pass."""


def count_encoded(task: Sequence[RunConfig], sources: Sources) -> tuple[int, int]:
    """Count the images and texts that runs on one stream encode; those with a gradient count three times.

    Without a window, methods of a task share the passes over images, so only the costliest one counts. Neither the
    model nor published data have to be available.
    """
    stream = task[0].stream
    in_domain, classes = data_size(stream, sources)
    batches = in_domain * len(stream.visits) / stream.batch_size
    images, texts = 0, 0
    for config in task:
        passes = expected_passes(
            config.method.parsed,
            dict(config.method.options),
            stream.window or stream.batch_size,
            classes,
            count_prompts(sources.templates or stream.templates),
        )
        own = passes.images + GRADIENT * passes.images_with_gradient
        images = images + own if stream.window else max(images, own)
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
