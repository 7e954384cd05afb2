"""Configurations to records: models and data loaded once, passes shared, work spread over processes."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import cast

from torch import nn

from tta_panda.data import load_data
from tta_panda.data.dataset import UNLABELLED, Dataset
from tta_panda.data.stream import Stream
from tta_panda.data.workers import worker_pool
from tta_panda.errors import DataError, UnsupportedModelError
from tta_panda.evaluation.loop import Evaluation, evaluate, shared_passes
from tta_panda.evaluation.record import PassesPerBatch, RunConfig, RunRecord, Tenth, describe_environment
from tta_panda.evaluation.store import RunStore
from tta_panda.methods import METHODS
from tta_panda.methods.base import Method, TrainedMethod
from tta_panda.methods.options import build_method
from tta_panda.models import Classifier, ImageModel, load_model, make_classifier
from tta_panda.models.checkpoints import weights_hash
from tta_panda.models.devices import Precision

Advance = Callable[[Sequence[RunConfig], float], None]
"""Called with the runs that took part in something and the share of their stream that it was."""

IMAGES_WORTH_A_PROCESS = 10_000


def default_workers(configs: Sequence[RunConfig], device: str) -> int:
    """As many processes as cores for long work with the embedded model, too small for threads to share; else one."""
    if device != "cpu" or any(config.model != "mini" for config in configs):
        return 1
    images = sum(config.limit or 1000 for config in configs)
    return max(1, min(os.cpu_count() or 1, images // IMAGES_WORTH_A_PROCESS))


class _Loaded:
    """A model, the hash of its weights, and its classifiers by class names."""

    def __init__(self, model: ImageModel):
        self.model = model
        self.weights_hash = weights_hash(cast(nn.Module, model))
        self._classifiers: dict[tuple[str, ...], Classifier] = {}

    def classifier(self, class_names: tuple[str, ...]) -> Classifier:
        if class_names not in self._classifiers:
            self._classifiers[class_names] = make_classifier(self.model, class_names)
        return self._classifiers[class_names]


class Runner:
    """Makes the records of configurations that the store does not hold, sharing what they have in common.

    Args:
        store: where records are kept.
        data_root: folder of data sets that are on disk.
        device: where models run.
        image_list: file with the images that runs with a list are restricted to.
        workers: processes to spread the runs over.
        alone: let every run encode for itself, one after the other, so that its seconds are those of its own work.
        keep_going: leave out runs whose numbers become NaN or infinite, once and for all, and domains that cannot be
            read, instead of raising.
    """

    def __init__(
        self,
        store: RunStore,
        data_root: Path | None = None,
        device: str = "cpu",
        image_list: Path | None = None,
        workers: int = 1,
        alone: bool = False,
        keep_going: bool = False,
    ):
        self.store = store
        self.data_root = data_root
        self.device = device
        self.image_list = image_list
        self.workers = workers
        self.alone = alone
        self.keep_going = keep_going
        # Of the last run: methods that the model cannot serve, domains that cannot be read, and why.
        self.unavailable: dict[str, str] = {}
        self.unreadable: dict[str, str] = {}
        self._loaded: dict[tuple[str, Precision], _Loaded] = {}
        self._last_data: tuple[object, Dataset] | None = None

    def run(self, configs: Sequence[RunConfig], advance: Advance = lambda _configs, _share: None) -> list[RunRecord]:
        """Records of the configurations, in their order. What is finished is saved at once.

        Methods that need something that the model does not offer are left out and named in `unavailable`; that all of
        them do is an error.
        """
        self.unavailable, self.unreadable = {}, {}
        self.store.prepare()
        records = self.store.existing(configs)
        settled = {*records, *(self.store.diverged(configs) if self.keep_going else ())}
        missing = [config for config in configs if config.key not in settled]
        work = self._run_apart(missing, advance) if self.workers > 1 else self._run_here(missing, advance)
        records |= {record.config.key: record for record in work}
        if self.unavailable and not records:
            raise UnsupportedModelError("\n".join(dict.fromkeys(self.unavailable.values())))
        if self.unreadable and not records:
            raise DataError(next(iter(self.unreadable.values())))
        return [records[config.key] for config in configs if config.key in records]

    def _run_here(self, configs: Sequence[RunConfig], advance: Advance) -> Iterator[RunRecord]:
        for domain in by_domain(configs):
            yield from self._run_domain(domain, advance)

    def _run_apart(self, configs: Sequence[RunConfig], advance: Advance) -> Iterator[RunRecord]:
        """On several processes, each with a model of its own."""
        tasks = [task for domain in by_domain(configs) for task in _apart(domain)]
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        worker = copy.copy(self)
        worker.workers, worker._loaded, worker._last_data = 1, {}, None
        with worker_pool(min(self.workers, len(tasks)) or 1, _start_worker, (worker, threads)) as spread:
            for task, (records, unavailable, unreadable) in zip(tasks, spread(_run_task, tasks), strict=True):
                advance(task, 1.0)
                self.unavailable |= unavailable
                self.unreadable |= unreadable
                yield from records

    def _run_domain(self, configs: Sequence[RunConfig], advance: Advance) -> Iterable[RunRecord]:
        try:
            yield from self._run_readable(configs, advance)
        except DataError as error:
            if not self.keep_going:
                raise
            self.unreadable[f"{configs[0].data}, {configs[0].corruption}"] = str(error)

    def _run_readable(self, configs: Sequence[RunConfig], advance: Advance) -> Iterable[RunRecord]:
        first = configs[0]
        dataset, classifier = self.prepare(first)
        stream = open_stream(first, dataset, classifier)
        configs, methods = self._build(configs, classifier, advance)
        for group in [[i] for i in range(len(methods))] if self.alone else shared_passes(methods):
            members = [configs[i] for i in group]
            report = functools.partial(advance, members)
            evaluations = evaluate([methods[i] for i in group], stream, report, alone=self.alone)
            for config, evaluation in zip(members, evaluations, strict=True):
                if evaluation.divergence:
                    self.store.save_divergence(config, str(evaluation.divergence))
                    continue
                record = self._record(config, evaluation, dataset, self._load(first).weights_hash)
                self.store.save(record)
                yield record
            divergences = [evaluation.divergence for evaluation in evaluations if evaluation.divergence]
            if divergences and not self.keep_going:
                raise divergences[0]

    def prepare(self, config: RunConfig) -> tuple[Dataset, Classifier]:
        """What a run works on, and with."""
        key = config.data, config.corruption, config.severity, config.limit, config.image_list
        if self._last_data is None or self._last_data[0] != key:  # runs come domain by domain
            self._last_data = key, self._data(config)
        dataset = self._last_data[1]
        return dataset, self._load(config).classifier(dataset.class_names)

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

    def _load(self, config: RunConfig) -> _Loaded:
        key = (config.model, config.precision)
        if key not in self._loaded:
            self._loaded[key] = _Loaded(load_model(config.model, device=self.device, precision=config.precision))
        return self._loaded[key]

    def _build(
        self, configs: Sequence[RunConfig], classifier: Classifier, advance: Advance
    ) -> tuple[list[RunConfig], list[Method]]:
        """The methods of those configurations that the model can serve."""
        built: list[tuple[RunConfig, Method]] = []
        for config in configs:
            try:
                built.append((config, build_method(config.method_name, classifier, config.options, config.seed)))
            except UnsupportedModelError as error:
                self.unavailable[str(config.method_name)] = str(error)
                advance([config], 1.0)
        return [config for config, _ in built], [method for _, method in built]

    def _record(self, config: RunConfig, evaluation: Evaluation, dataset: Dataset, weights: str) -> RunRecord:
        tally, betas, recalls = evaluation.tally, evaluation.betas, evaluation.tally.recalls
        return RunRecord(
            config=config,
            weights_hash=weights,
            samples=tally.samples,
            accuracy=tally.accuracy,
            accuracy_stderr=tally.accuracy_stderr,
            l1=tally.l1,
            ece=tally.ece,
            nll=tally.nll,
            nll_stderr=tally.nll_stderr,
            recall_sd=float(recalls.std(correction=0)),
            recall_min=float(recalls.min()),
            recall_max=float(recalls.max()),
            class_names=list(dataset.class_names),
            predicted_counts=tally.predicted.tolist(),
            label_counts=tally.labels.tolist(),
            mean_probabilities=tally.mean_probabilities.tolist(),
            mean_beta=sum(betas) / len(betas) if betas else None,
            passes=PassesPerBatch.of(evaluation.passes),
            tenths=[Tenth.of(tenth) for tenth in evaluation.tenths.tallies if tenth.samples],
            seconds=round(evaluation.seconds, 4),
            images_per_second=round(tally.samples / max(evaluation.seconds, 1e-9), 2),
            peak_memory=evaluation.peak_memory,
            environment=describe_environment(self.device),
        )


def open_stream(config: RunConfig, dataset: Dataset, classifier: Classifier) -> Stream:
    """The batches of a run, in its order, as its model takes them."""
    framing = getattr(classifier.model, "framing", classifier.model.image_size)
    return Stream(dataset, config.batch_size, config.seed, framing if config.preprocess == "exact" else None)


def trains_encoder(config: RunConfig) -> bool:
    """Whether a run can share its passes with no other."""
    return issubclass(METHODS.get(config.method), TrainedMethod)


def by_domain(configs: Iterable[RunConfig]) -> list[list[RunConfig]]:
    """Configurations that read the same stream, together, in the order of their first appearance."""
    domains: dict[tuple[object, ...], list[RunConfig]] = {}
    for c in configs:
        domains.setdefault(tuple(c.model_dump(exclude={"method", "panda", "options"}).values()), []).append(c)
    return list(domains.values())


def _apart(domain: Sequence[RunConfig]) -> list[list[RunConfig]]:
    """A domain in pieces that share nothing: methods that train the encoder one by one, and all others."""
    frozen = [config for config in domain if not trains_encoder(config)]
    trained = [[config] for config in domain if trains_encoder(config)]
    return [frozen, *trained] if frozen else trained


_worker: Runner


def _start_worker(runner: Runner, threads: int) -> None:
    import torch

    global _worker
    torch.set_num_threads(threads)
    _worker = runner


def _run_task(configs: Sequence[RunConfig]) -> tuple[list[RunRecord], dict[str, str], dict[str, str]]:
    _worker.unavailable, _worker.unreadable = {}, {}
    records = list(_worker._run_here(configs, lambda _configs, _share: None))
    return records, _worker.unavailable, _worker.unreadable
