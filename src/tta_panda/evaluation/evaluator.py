"""Evaluate the runs on one stream, with model and data loaded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from tta_panda.data import load_data
from tta_panda.data.dataset import Dataset
from tta_panda.data.stream import Domains, Stream
from tta_panda.errors import DataError, NumericalError, UnsupportedModelError
from tta_panda.evaluation.config import RunConfig, StreamConfig
from tta_panda.evaluation.loop import Evaluation, run_stream, warm_up
from tta_panda.evaluation.plan import Sources
from tta_panda.evaluation.record import SCHEMA, FailedRun, RunRecord, describe_environment
from tta_panda.executors import Report
from tta_panda.methods.base import Method
from tta_panda.methods.factory import build_method
from tta_panda.methods.feature_cache import FeatureCache
from tta_panda.models import Classifier, ImageModel, load_model, make_classifier
from tta_panda.models.base import framing_of
from tta_panda.models.checkpoints import weights_hash
from tta_panda.models.devices import Backend, Precision, resolve_device

_UNRELATED_TO_IMAGES = ("model", "weights", "precision", "backend", "templates", "order", "seed", "batch_size")
"""Fields of a stream that do not affect which images it contains. Omitting one here only costs time."""


class Evaluator:
    """Evaluate runs, keeping the model and the last data for the next ones.

    Args:
        sources: where model and data are found.
        device: where the model runs; `auto` for the best one of the machine that runs the evaluation.
        timed: evaluate runs one after another without sharing encoder passes, so that each is timed by itself.
        cache: folder with a cache of encoder passes of frozen methods; timed runs do not use it.
    """

    def __init__(self, sources: Sources, device: str = "cpu", *, timed: bool = False, cache: Path | None = None):
        self.sources = sources
        self.device = device
        self.timed = timed
        self.cache = None if timed else cache
        self._models: dict[tuple[str, str], tuple[ImageModel, str, FeatureCache | None]] = {}
        self._classifiers: dict[tuple[object, ...], Classifier] = {}
        self._last_data: dict[StreamConfig, Dataset] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_models": {}, "_classifiers": {}, "_last_data": {}}  # another process loads its own

    def evaluate(self, runs: Sequence[RunConfig], report: Report = lambda _share: None) -> list[RunRecord | FailedRun]:
        """Evaluate runs on one stream; return the record of each, or the reason why it has none."""
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
            evaluations = run_stream(methods, data, share=not self.timed, report=report, cache=cache)
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
                environment=describe_environment(resolve_device(self.device)),
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
            model, _, _ = self._model(stream)
            self._classifiers[key] = make_classifier(model, first.class_names, stream.templates)
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
        )

    def _model(self, stream: StreamConfig) -> tuple[ImageModel, str, FeatureCache | None]:
        """The model, the hash of its weights, and its cache of encoder passes."""
        key = cast(Precision, stream.precision), cast(Backend, stream.backend)
        if key not in self._models:
            model = load_model(self.sources.model, resolve_device(self.device), *key)
            cache = None if self.cache is None else FeatureCache(self.cache, model)
            self._models[key] = model, weights_hash(cast(nn.Module, model)), cache
        return self._models[key]
