"""Runs that share encoder passes to records, with model and data loaded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import nn

from tta_panda.data import load_data
from tta_panda.data.dataset import UNLABELLED, Dataset
from tta_panda.data.stream import Domains, Stream
from tta_panda.errors import DataError, NumericalError, UnsupportedModelError
from tta_panda.evaluation.config import RunConfig, StreamConfig
from tta_panda.evaluation.loop import Evaluation, run_stream, shared_passes, warm_up
from tta_panda.evaluation.outcome import Outcome
from tta_panda.evaluation.plan import Sources
from tta_panda.evaluation.record import FailedRun, RunRecord, describe_environment
from tta_panda.methods.base import Method
from tta_panda.methods.factory import build_method
from tta_panda.methods.feature_cache import FeatureCache
from tta_panda.models import Classifier, ImageModel, load_model, make_classifier
from tta_panda.models.base import framing_of
from tta_panda.models.checkpoints import weights_hash
from tta_panda.models.devices import Backend, Precision, resolve_device

_NOT_OF_IMAGES = ("model", "weights", "precision", "backend", "templates", "order", "seed", "batch_size")
"""Fields of a stream that do not decide which images it has. One that is forgotten here only costs time."""


class Evaluator:
    """Makes records of runs, and keeps the model and the last data for the next ones.

    Args:
        sources: where model and data are found.
        device: where the model runs; `auto` for the best that there is where this is used.
        timed: let every run encode for itself, one after the other, so that its seconds are those of its own work.
        cache: folder where encoder passes of frozen methods are kept and found; timed runs do without.
    """

    def __init__(self, sources: Sources, device: str = "cpu", *, timed: bool = False, cache: Path | None = None):
        self.sources = sources
        self.device = device
        self.timed = timed
        self.cache = None if timed else cache
        self._models: dict[tuple[str, str], _LoadedModel] = {}
        self._last_data: dict[StreamConfig, Dataset] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_models": {}, "_last_data": {}}  # another process loads its own

    def evaluate(self, runs: Sequence[RunConfig], advance: Callable[[float], None] = lambda _share: None) -> Outcome:
        """The records of runs on one stream; what the model cannot serve, or cannot be read or diverges is named."""
        stream, outcome = runs[0].stream, Outcome()
        try:
            dataset, classifier = self.load(stream)
            built: list[tuple[RunConfig, Method]] = []
            for config in runs:
                try:
                    built.append((config, self.build(config, classifier)))
                except UnsupportedModelError as error:
                    outcome.unavailable[config.method.name] = str(error)
            for group in self.groups([method for _, method in built]):
                weight = len(group) / len(runs)
                self._run_group(
                    [built[i] for i in group],
                    open_stream(stream, dataset, classifier),
                    outcome,
                    partial(_weighted, advance, weight),
                )
        except DataError as error:
            outcome.unreadable[f"{stream.data}, {stream.domain}"] = str(error)
        return outcome

    def groups(self, methods: Sequence[Method]) -> list[list[int]]:
        """Indices of methods in groups that are run together."""
        return [[i] for i in range(len(methods))] if self.timed else shared_passes(methods)

    def _run_group(
        self,
        members: Sequence[tuple[RunConfig, Method]],
        stream: Stream,
        outcome: Outcome,
        advance: Callable[[float], None],
    ) -> None:
        runs, methods = [config for config, _ in members], [method for _, method in members]
        model = self._model(runs[0].stream)
        if self.timed:
            warm_up(methods[0], next(iter(stream))[0])
        evaluations = run_stream(methods, stream, share=not self.timed, advance=advance, cache=model.cache)
        for config, evaluation in zip(runs, evaluations, strict=True):
            if isinstance(evaluation.error, NumericalError):
                outcome.diverged[config.key] = FailedRun.of(config, evaluation.error)
            elif evaluation.error:
                outcome.failed[config.key] = FailedRun.of(config, evaluation.error)
            else:
                outcome.records[config.key] = self._record(config, evaluation, model)
            evaluation.method.reset()  # frees what it remembers

    def _record(self, config: RunConfig, evaluation: Evaluation, model: _LoadedModel) -> RunRecord:
        return RunRecord(
            **dict(evaluation.result()),
            config=config,
            weights_hash=model.weights_hash,
            environment=describe_environment(resolve_device(self.device)),
        )

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
            model = load_model(self.sources.model, resolve_device(self.device), *key)
            self._models[key] = _LoadedModel(model, self.cache)
        return self._models[key]


def _weighted(advance: Callable[[float], None], weight: float, share: float) -> None:
    advance(weight * share)


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
