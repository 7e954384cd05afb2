"""Runs to records: models and data loaded once, passes shared, work spread over processes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn

from tta_panda.data import load_data
from tta_panda.data.dataset import UNLABELLED, Dataset
from tta_panda.data.stream import Domains, Stream
from tta_panda.errors import DataError, TtaPandaWarning, UnsupportedModelError
from tta_panda.evaluation.config import RunConfig, StreamConfig, by_stream
from tta_panda.evaluation.loop import Evaluation, run_stream, shared_passes, warm_up
from tta_panda.evaluation.plan import Sources
from tta_panda.evaluation.record import Divergence, RunRecord, describe_environment
from tta_panda.evaluation.store import RunStore
from tta_panda.methods import METHODS, register_method, registered_targets
from tta_panda.methods.base import Method
from tta_panda.methods.cache import FeatureCache
from tta_panda.methods.options import build_method
from tta_panda.methods.trained import TrainedMethod
from tta_panda.models import Classifier, ImageModel, load_model, make_classifier, model_source
from tta_panda.models.backends import Backend
from tta_panda.models.checkpoints import weights_hash
from tta_panda.models.devices import Precision
from tta_panda.models.images import framing_of
from tta_panda.workers import available_cores, worker_pool

Advance = Callable[[Sequence[RunConfig], float], None]
"""Called with the runs that took part in something and the share of their stream that it was."""

_NOT_OF_IMAGES = ("model", "weights", "precision", "backend", "templates", "order", "seed", "batch_size")
"""Fields of a stream that do not decide which images it has. One that is forgotten here only costs time."""

IMAGES_WORTH_A_PROCESS = 10_000


def default_workers(configs: Sequence[RunConfig], sources: Sources, device: str) -> int:
    """One process per core for long work with a model that is too small for threads to pay; else one."""
    if device != "cpu" or not model_source(sources.model).small:
        return 1
    images = sum((config.stream.limit or 1000) * len(config.stream.visits) for config in configs)
    return max(1, min(available_cores(), images // IMAGES_WORTH_A_PROCESS))


@dataclass
class Outcome:
    """What came of some runs: their records by key, and what has none, with the reason."""

    records: dict[str, RunRecord] = field(default_factory=dict)
    existed: int = 0
    """Records that had been made before."""
    unavailable: dict[str, str] = field(default_factory=dict)
    """Methods that the model cannot serve."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Domains that cannot be read."""
    diverged: dict[str, Divergence] = field(default_factory=dict)
    """Runs whose predictions became NaN or infinite, by key."""

    def missing(self) -> list[dict[str, str]]:
        """What has no record, as rows: what it is, what became of it, and why."""
        rows = [{"what": name, "status": "unavailable", "reason": why} for name, why in self.unavailable.items()]
        rows += [{"what": name, "status": "unreadable", "reason": why} for name, why in self.unreadable.items()]
        return rows + [
            {"what": str(each.config), "status": "diverged", "reason": each.message} for each in self.diverged.values()
        ]

    def merge(self, other: Outcome) -> None:
        self.records |= other.records
        self.unavailable |= other.unavailable
        self.unreadable |= other.unreadable
        self.diverged |= other.diverged


class Runner:
    """Makes the records that the store does not hold, sharing what runs have in common.

    What the model cannot serve, what cannot be read and what diverges is left out and named in the outcome. That a run
    diverged is remembered beside the records, so that it is not made again.

    Args:
        store: where records are kept.
        sources: where model and data are found.
        device: where the model runs.
        workers: processes to spread the runs over.
        timed: let every run encode for itself, one after the other, so that its seconds are those of its own work.
        cache: folder where encoder passes of frozen methods are kept and found; timed runs do without.
    """

    def __init__(
        self,
        store: RunStore,
        sources: Sources,
        device: str = "cpu",
        *,
        workers: int = 1,
        timed: bool = False,
        cache: Path | None = None,
    ):
        self.store = store
        self.sources = sources
        self.device = device
        self.workers = workers
        self.timed = timed
        self.cache = None if timed else cache
        self._models: dict[tuple[str, str], _LoadedModel] = {}
        self._last_data: dict[StreamConfig, Dataset] = {}

    def run(self, configs: Sequence[RunConfig], advance: Advance = lambda _configs, _share: None) -> Outcome:
        """Make what is missing of these runs. What is finished is saved at once."""
        self.store.prepare()
        outcome = Outcome(self.store.existing(configs), diverged=self.store.divergences(configs))
        outcome.existed = len(outcome.records)
        settled = {*outcome.records, *outcome.diverged}
        missing = [config for config in configs if config.key not in settled]
        if settled:
            advance([config for config in configs if config.key in settled], 1.0)
        for part in self._run_in_processes(missing, advance) if self.workers > 1 else self._run_here(missing, advance):
            outcome.merge(part)
        if not outcome.records and outcome.unavailable:
            raise UnsupportedModelError("\n".join(dict.fromkeys(outcome.unavailable.values())))
        if not outcome.records and outcome.unreadable:
            raise DataError(next(iter(outcome.unreadable.values())))
        outcome.records = {c.key: outcome.records[c.key] for c in configs if c.key in outcome.records}
        return outcome

    def _run_here(self, configs: Sequence[RunConfig], advance: Advance) -> Iterator[Outcome]:
        for stream, members in by_stream(configs).items():
            try:
                yield from self._run_stream(stream, members, advance)
            except DataError as error:
                yield Outcome(unreadable={f"{stream.data}, {stream.domain}": str(error)})

    def _run_in_processes(self, configs: Sequence[RunConfig], advance: Advance) -> Iterator[Outcome]:
        tasks = [task for members in by_stream(configs).values() for task in _independent(members)]
        if len(tasks) < 2:
            yield from self._run_here(configs, advance)
            return
        workers = min(self.workers, len(tasks))
        runner = copy.copy(self)
        runner.workers, runner._models, runner._last_data = 1, {}, {}
        own_methods = registered_targets({config.method.parsed.base for config in configs})
        prepare = partial(_prepare_worker, max(1, available_cores() // workers), own_methods)
        with worker_pool(workers, runner, prepare) as pool_map:
            for task, outcome in zip(tasks, pool_map(_run_task, tasks), strict=True):
                advance(task, 1.0)
                yield outcome

    def _run_stream(self, config: StreamConfig, members: list[RunConfig], advance: Advance) -> Iterator[Outcome]:
        dataset, classifier = self.load(config)
        stream = open_stream(config, dataset, classifier)
        built: list[tuple[RunConfig, Method]] = []
        for member in members:
            try:
                built.append((member, self.build(member, classifier)))
            except UnsupportedModelError as error:
                advance([member], 1.0)
                yield Outcome(unavailable={member.method.name: str(error)})
        methods = [method for _, method in built]
        for group in [[i] for i in range(len(methods))] if self.timed else shared_passes(methods):
            runs = [built[i][0] for i in group]
            if self.timed:
                warm_up(methods[group[0]], next(iter(stream))[0])
            evaluations = run_stream(
                [methods[i] for i in group],
                stream,
                share=not self.timed,
                advance=partial(advance, runs),
                cache=self._model(config).cache,
            )
            yield self._save(runs, evaluations)

    def _save(self, runs: Sequence[RunConfig], evaluations: Sequence[Evaluation]) -> Outcome:
        outcome = Outcome()
        for config, evaluation in zip(runs, evaluations, strict=True):
            if evaluation.divergence:
                self.store.save_divergence(config, str(evaluation.divergence))
                outcome.diverged[config.key] = Divergence(config=config, message=str(evaluation.divergence))
            else:
                record = RunRecord(
                    **dict(evaluation.result()),
                    config=config,
                    weights_hash=self._model(config.stream).weights_hash,
                    environment=describe_environment(self.device),
                )
                self.store.save(record)
                outcome.records[config.key] = record
            evaluation.method.reset()  # frees what it remembers
        return outcome

    def build(self, config: RunConfig, classifier: Classifier) -> Method:
        return build_method(config.method.parsed, classifier, dict(config.method.options), config.stream.seed)

    def load(self, stream: StreamConfig) -> tuple[Dataset | Domains, Classifier]:
        """The images of a stream, and the classifier for their classes."""
        any_other = StreamConfig(model="", data=stream.data)
        images = replace(stream, **{name: getattr(any_other, name) for name in _NOT_OF_IMAGES})
        loaded, self._last_data = self._last_data, {}
        domains: dict[str, list[Dataset]] = {}
        for corruption, severity in stream.visits:
            one = replace(images, corruption=corruption, severity=severity)
            if one not in self._last_data:
                self._last_data[one] = loaded.get(one) or self._load_data(one)
            domains.setdefault(corruption, []).append(self._last_data[one])
        first = next(iter(self._last_data.values()))
        classifier = self._model(stream).classifier(first.class_names, stream.templates)
        return domains if stream.parsed_order.joins_domains else first, classifier

    def _load_data(self, stream: StreamConfig) -> Dataset:
        dataset = load_data(
            stream.data,
            stream.corruption,
            stream.severity,
            root=self.sources.data_root,
            limit=stream.limit,
            image_list=self.sources.image_list if stream.image_list else None,
            skip_broken=self.sources.skip_broken,
            ignore_orientation=stream.ignore_orientation,
        )
        if (dataset.labels == UNLABELLED).any():
            raise DataError(
                f"The images in {self.sources.data_root} have no labels, so no accuracy can be measured on them. Sort "
                "them into one sub-folder per class."
            )
        return dataset

    def _model(self, stream: StreamConfig) -> _LoadedModel:
        key = cast(Precision, stream.precision), cast(Backend, stream.backend)
        if key not in self._models:
            self._models[key] = _LoadedModel(load_model(self.sources.model, self.device, *key), self.cache)
        return self._models[key]


class _LoadedModel:
    """A model, the hash of its weights, its passes on disk, and its classifiers by class names and prompts."""

    def __init__(self, model: ImageModel, cache: Path | None):
        self.model = model
        self.cache = None if cache is None else FeatureCache(cache, model)
        self.weights_hash = weights_hash(cast(nn.Module, model))
        self._classifiers: dict[tuple[tuple[str, ...], str], Classifier] = {}

    def classifier(self, class_names: tuple[str, ...], templates: str) -> Classifier:
        key = class_names, templates
        if key not in self._classifiers:
            self._classifiers[key] = make_classifier(self.model, *key)
        return self._classifiers[key]


def open_stream(config: StreamConfig, dataset: Dataset | Domains, classifier: Classifier) -> Stream:
    """The batches of a stream, as its model takes them."""
    fit = framing_of(classifier.model) if config.preprocess == "exact" else None
    return Stream(dataset, config.batch_size, config.seed, fit, config.order)


def _independent(members: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """Runs on one stream in pieces that share nothing: methods that train the encoder one by one, and all others."""
    trained = {
        config.key: [config] for config in members if issubclass(METHODS.get(config.method.parsed.base), TrainedMethod)
    }
    frozen = [config for config in members if config.key not in trained]
    return [frozen, *trained.values()] if frozen else list(trained.values())


def _prepare_worker(threads: int, methods: dict[str, str]) -> None:
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore", TtaPandaWarning)  # the main process has planned these runs, and said it
    for name, target in methods.items():
        register_method(name, target)


def _run_task(runner: Runner, configs: Sequence[RunConfig]) -> Outcome:
    outcome = Outcome()
    for part in runner._run_here(configs, lambda _configs, _share: None):
        outcome.merge(part)
    return outcome
