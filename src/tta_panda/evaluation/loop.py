"""The evaluation loop: one stream of images through methods, labels against logits."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor

from tta_panda.data.stream import Stream
from tta_panda.errors import DataError, InvalidInputError, NumericalError
from tta_panda.evaluation.memory import PeakMemory
from tta_panda.evaluation.metrics import MetricsByTenth, StreamMetrics
from tta_panda.evaluation.record import EvaluationResult, PassesPerBatch, Tenth
from tta_panda.methods.base import FrozenMethod, Method
from tta_panda.methods.passes import EncoderPasses
from tta_panda.methods.sharing import SharedFeatures

Batches = Iterable[Sequence[Tensor]]
"""(images, labels), as a `Stream` or a `DataLoader` gives them."""


def evaluate(method: Method, batches: Batches, *, reset: bool = True) -> EvaluationResult:
    """Adapt to a labelled stream and measure the predictions.

    Args:
        method: what predicts; it never sees a label.
        batches: an iterable of (images, labels): a `Stream`, a `torch.utils.data.DataLoader`, a list.
        reset: start from a fresh state. False goes on where the method stands.

    Raises:
        NumericalError: where predictions become NaN or infinite.
    """
    [evaluation] = run_stream([method], batches, share=False, reset=reset)
    if evaluation.divergence:
        raise evaluation.divergence
    return evaluation.result()


class Evaluation:
    """One method on one stream, while it goes on."""

    def __init__(self, method: Method, images: int | None):
        classes = len(method.classifier.class_names)
        self.method = method
        self.metrics = StreamMetrics(classes)
        self.by_tenth = None if images is None else MetricsByTenth(classes, images)
        self.seconds = 0.0
        self.betas: list[float] = []
        self.passes = EncoderPasses()
        self._passes_before = dataclasses.replace(method.passes)
        self.peak_memory: int | None = None
        self.divergence: NumericalError | None = None
        """Why it ended early, if it did; methods that share passes with this one go on."""

    def update(self, logits: Tensor, labels: Tensor, seconds: float) -> None:
        try:
            self.metrics.update(logits, labels)
        except NumericalError as error:
            self.divergence = error
            return
        if self.by_tenth is not None:
            self.by_tenth.update(logits, labels)
        self.seconds += seconds
        self.passes = self.method.passes - self._passes_before
        if self.method.beta is not None:
            self.betas.append(self.method.beta)

    def result(self) -> EvaluationResult:
        metrics, recalls = self.metrics, self.metrics.recalls
        if not metrics.samples:
            raise DataError("The stream holds no images, so there is nothing to measure.")
        return EvaluationResult(
            samples=metrics.samples,
            accuracy=metrics.accuracy,
            accuracy_stderr=metrics.accuracy_stderr,
            bias=metrics.bias,
            ece=metrics.ece,
            nll=metrics.nll,
            nll_stderr=metrics.nll_stderr,
            recall_sd=float(recalls.std(correction=0)),
            recall_min=float(recalls.min()),
            recall_max=float(recalls.max()),
            class_names=list(self.method.classifier.class_names),
            predicted_counts=metrics.predicted.tolist(),
            label_counts=metrics.labels.tolist(),
            mean_probabilities=metrics.mean_probabilities.tolist(),
            mean_beta=sum(self.betas) / len(self.betas) if self.betas else None,
            passes=PassesPerBatch.of(self.passes),
            tenths=[Tenth.of(tenth) for tenth in self.by_tenth.tenths if tenth.samples] if self.by_tenth else [],
            seconds=round(self.seconds, 4),
            images_per_second=round(metrics.samples / max(self.seconds, 1e-9), 2),
            peak_memory=self.peak_memory,
        )


def run_stream(
    methods: Sequence[Method],
    batches: Batches,
    *,
    share: bool = True,
    reset: bool = True,
    advance: Callable[[float], None] = lambda _share: None,
) -> list[Evaluation]:
    """Take methods through one stream; frozen ones that agree on their views share their encoder passes.

    Args:
        methods: several frozen methods, or a single one of any kind.
        share: encode for frozen methods together, even for a single one: its record must not depend, not even in the
            last bits, on which others happened to be missing. False lets a single method encode for itself, as it
            would in use.
        advance: called with the share of the stream that was just done.
    """
    images = len(batches.dataset) if isinstance(batches, Stream) else None
    if reset:
        for method in methods:
            method.reset()
    evaluations = [Evaluation(method, images) for method in methods]
    step = _SharedStep(evaluations) if share and isinstance(methods[0], FrozenMethod) else _SingleStep(*evaluations)
    memory = PeakMemory(methods[0].classifier.model.device)
    for batch in batches:
        pixels, labels = _checked(batch, len(methods[0].classifier.class_names))
        if not len(labels):
            continue
        step(pixels, labels)
        advance(len(labels) / images if images else 0.0)
    for evaluation in evaluations:
        evaluation.peak_memory = memory.read()
    return evaluations


def _checked(batch: Sequence[Tensor], classes: int) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, Sequence) or len(batch) != 2:
        found = f"{len(batch)} items" if isinstance(batch, Sequence) else type(batch).__name__
        raise InvalidInputError(f"A stream gives pairs of images and labels, got {found}.")
    images, labels = batch[0], torch.as_tensor(batch[1]).cpu()
    if labels.shape != (len(images),) or labels.is_floating_point():
        raise InvalidInputError(
            f"labels must be {len(images)} whole numbers, one for each image, got {labels.dtype} {tuple(labels.shape)}."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InvalidInputError(
            f"Labels must lie in 0..{classes - 1} for {classes} classes, got {int(labels.min())}..{int(labels.max())}."
        )
    return images, labels.long()


def warm_up(method: Method, images: Tensor) -> None:
    """Do what only the first batch costs, such as taking memory and compiling kernels, before time is measured."""
    method.adapt(images)
    method.reset()


class _SingleStep:
    """Takes one method through a batch."""

    def __init__(self, evaluation: Evaluation):
        self.evaluation = evaluation

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        if self.evaluation.divergence:
            return
        start = time.perf_counter()
        # To the CPU within the measured time: a GPU returns before its work is done.
        logits = self.evaluation.method.adapt(images).cpu()
        self.evaluation.update(logits, labels, time.perf_counter() - start)


class _SharedStep:
    """Takes frozen methods through a batch that is encoded once; each is timed as if it had encoded alone."""

    def __init__(self, evaluations: Sequence[Evaluation]):
        self.members = [(evaluation, cast(FrozenMethod, evaluation.method)) for evaluation in evaluations]
        self.features = SharedFeatures([method.features for _, method in self.members])

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        shared = self.features.encode(images)
        for evaluation, method in self.members:
            if evaluation.divergence:
                continue
            encoded, seconds = shared.part_of(method.features)
            start = time.perf_counter()
            logits = method.adapt_encoded(encoded).cpu()
            evaluation.update(logits, labels, seconds + time.perf_counter() - start)


def shared_passes(methods: Iterable[Method]) -> list[list[int]]:
    """Indices of methods in groups that can work on the same encoded batches.

    Methods that train the encoder stand alone. Frozen ones go together as long as they agree on their views; one that
    uses none agrees with any.
    """
    alone: list[list[int]] = []
    groups: list[tuple[object, list[int]]] = []
    for index, method in enumerate(methods):
        if not isinstance(method, FrozenMethod):
            alone.append([index])
            continue
        key = method.features.views_key
        for place, (views, members) in enumerate(groups):
            if key is None or views is None or key == views:
                groups[place] = (key if views is None else views, [*members, index])
                break
        else:
            groups.append((key, [index]))
    return [members for _, members in groups] + alone
