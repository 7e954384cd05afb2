"""The evaluation loop: streams of images through methods, labels against logits, records into the store."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from torch import Tensor

from tta_panda.data import load_data
from tta_panda.data.dataset import UNLABELLED, Dataset
from tta_panda.data.stream import Stream
from tta_panda.errors import DataError
from tta_panda.evaluation.metrics import Tally
from tta_panda.evaluation.record import RunConfig, RunRecord, describe_environment
from tta_panda.evaluation.store import RunStore
from tta_panda.methods.base import FrozenMethod, Method
from tta_panda.methods.options import build_method
from tta_panda.models import VisionLanguageModel, ZeroShotClassifier, load_model

Advance = Callable[[Sequence[RunConfig], float], None]
"""Called after every batch with the runs that took part and the share of their stream that it was."""


class Evaluation:
    """One method on one stream, while it goes on."""

    def __init__(self, method: Method, classes: int):
        self.method = method
        self.tally = Tally(classes)
        self.seconds = 0.0
        self.betas: list[float] = []

    def update(self, logits: Tensor, labels: Tensor, seconds: float) -> None:
        self.tally.update(logits, labels)
        self.seconds += seconds
        if self.method.features.debiaser is not None:
            self.betas.append(self.method.features.debiaser.beta)


def evaluate(
    methods: Sequence[Method], stream: Stream, advance: Callable[[float], None] = lambda _share: None
) -> list[Evaluation]:
    """Run methods that can share their encoder passes (see `shared_passes`) over one stream, from a fresh state."""
    evaluations = [Evaluation(method, len(stream.dataset.class_names)) for method in methods]
    for method in methods:
        method.reset()
    for images, labels in stream:
        _update(evaluations, images, labels)
        advance(len(labels) / len(stream.dataset))
    for method in methods:
        method.reset()
    return evaluations


def _update(evaluations: Sequence[Evaluation], images: Tensor, labels: Tensor) -> None:
    if len(evaluations) == 1:
        start = time.perf_counter()
        # To the CPU within the measured time: a GPU hands its result out before it is done.
        logits = evaluations[0].method.adapt(images).cpu()
        evaluations[0].update(logits, labels, time.perf_counter() - start)
        return
    # Negatives are drawn by a method that uses them; the others take the features of the same pass.
    leader = max((e.method for e in evaluations), key=lambda method: method.features.debiaser is not None)
    start = time.perf_counter()
    encoded = leader.features.encode_frozen(images)
    encoding = time.perf_counter() - start
    for evaluation in evaluations:
        if not isinstance(evaluation.method, FrozenMethod):
            raise TypeError(f"{type(evaluation.method).__name__} trains its encoder and cannot share a pass.")
        start = time.perf_counter()
        logits = evaluation.method.adapt_encoded(encoded).cpu()
        evaluation.update(logits, labels, encoding + time.perf_counter() - start)


def shared_passes(methods: Iterable[Method]) -> list[list[int]]:
    """Indices of methods in groups that can work on the same encoded batches.

    Methods that train the encoder stand alone. Frozen ones go together as long as they agree on the negatives; one
    without Panda agrees with any.
    """
    groups: list[list[int]] = []
    frozen: dict[object, list[int]] = {}
    plain: list[int] = []
    for index, method in enumerate(methods):
        if not isinstance(method, FrozenMethod):
            groups.append([index])
        elif method.features.debiaser is None:
            plain.append(index)
        else:
            frozen.setdefault(method.features.debiaser.negatives_key, []).append(index)
    together = list(frozen.values()) or [[]]
    together[0] = plain + together[0]
    return [group for group in together if group] + groups


class Runner:
    """Makes the records of configurations that the store does not hold, sharing what they have in common."""

    def __init__(
        self, store: RunStore, data_root: Path | None = None, device: str = "cpu", image_list: Path | None = None
    ):
        self.store = store
        self.data_root = data_root
        self.device = device
        self.image_list = image_list
        self._models: dict[str, VisionLanguageModel] = {}
        self._classifiers: dict[tuple[str, tuple[str, ...]], ZeroShotClassifier] = {}

    def run(self, configs: Sequence[RunConfig], advance: Advance = lambda _configs, _share: None) -> list[RunRecord]:
        """Records of all configurations, in their order. What is finished is saved at once."""
        self.store.prepare()
        records = self.store.existing(configs)
        for domain in _by_domain(config for config in configs if config.key not in records):
            for record in self._run_domain(domain, advance):
                records[record.config.key] = record
        return [records[config.key] for config in configs]

    def _run_domain(self, configs: Sequence[RunConfig], advance: Advance) -> Iterable[RunRecord]:
        first = configs[0]
        dataset = self._data(first)
        classifier = self._classifier(first.model, dataset)
        fit = classifier.model.image_size if first.preprocess == "exact" else None
        stream = Stream(dataset, first.batch_size, first.seed, fit)
        methods = [build_method(c.method_name, classifier, c.options, c.seed) for c in configs]
        for group in shared_passes(methods):
            members = [configs[i] for i in group]
            evaluations = evaluate([methods[i] for i in group], stream, functools.partial(advance, members))
            for config, evaluation in zip(members, evaluations, strict=True):
                record = self._record(config, evaluation, dataset)
                self.store.save(record)
                yield record

    def _data(self, config: RunConfig) -> Dataset:
        dataset = load_data(
            config.data,
            config.corruption,
            config.severity,
            root=self.data_root,
            limit=config.limit,
            image_list=self.image_list if config.image_list else None,
        )
        if (dataset.labels == UNLABELLED).any():
            raise DataError(
                f"The images in {self.data_root} have no labels, so no accuracy can be measured on them. Sort them "
                "into one sub-folder per class."
            )
        return dataset

    def _classifier(self, model: str, dataset: Dataset) -> ZeroShotClassifier:
        if model not in self._models:
            self._models[model] = load_model(model, device=self.device)
        key = (model, dataset.class_names)
        if key not in self._classifiers:
            self._classifiers[key] = ZeroShotClassifier(self._models[model], dataset.class_names)
        return self._classifiers[key]

    def _record(self, config: RunConfig, evaluation: Evaluation, dataset: Dataset) -> RunRecord:
        tally, betas = evaluation.tally, evaluation.betas
        return RunRecord(
            config=config,
            samples=tally.samples,
            accuracy=tally.accuracy,
            accuracy_stderr=tally.accuracy_stderr,
            l1=tally.l1,
            class_names=list(dataset.class_names),
            predicted_counts=tally.predicted.tolist(),
            label_counts=tally.labels.tolist(),
            mean_probabilities=tally.mean_probabilities.tolist(),
            mean_beta=sum(betas) / len(betas) if betas else None,
            seconds=round(evaluation.seconds, 4),
            environment=describe_environment(self.device),
        )


def _by_domain(configs: Iterable[RunConfig]) -> list[list[RunConfig]]:
    """Configurations that read the same stream, together, in the order of their first appearance."""
    domains: dict[tuple[object, ...], list[RunConfig]] = {}
    for c in configs:
        domains.setdefault(tuple(c.model_dump(exclude={"method", "panda", "options"}).values()), []).append(c)
    return list(domains.values())
