"""The evaluation loop: one stream of images through methods, labels against logits."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from tta_panda.data.stream import Stream
from tta_panda.errors import DataError, InvalidInputError, NumericalError, TtaPandaError
from tta_panda.evaluation.memory import PeakMemory
from tta_panda.evaluation.metrics import GroupedMetrics, Groups, Scores, StreamMetrics, group_images
from tta_panda.evaluation.record import EvaluationResult, Measurement, PassesPerBatch, Tenth
from tta_panda.methods.base import EncoderPasses, FrozenMethod, Method
from tta_panda.methods.feature_cache import FeatureCache
from tta_panda.methods.sharing import SharedBatch, SharedFeatures

Batches = Iterable[Sequence[Any]]
"""(images, labels), as a `Stream` or a `DataLoader` gives them; with the names of the images' domains, if there are
several."""

TENTHS = 10

LOGITS_AT_ONCE = 2**17
"""Predictions of methods that share a batch are measured together, as long as they stay in a processor's cache."""


def evaluate(
    method: Method, batches: Batches, *, reset: bool = True, cache: Path | str | None = None
) -> EvaluationResult:
    """Adapt to a labelled stream and measure the predictions.

    Args:
        method: what predicts; it never sees a label.
        batches: an iterable of (images, labels): a `Stream`, a `torch.utils.data.DataLoader`, a list. With (images,
            labels, domains), `domains` being one name for each image, every domain is measured by itself, too.
        reset: start from a fresh state. False goes on where the method stands.
        cache: folder where encoder passes are kept, and found by other frozen methods on the same batches. Images and
            negatives are then separate passes, which can change the last bits of a float. Methods that train the
            encoder do without.

    Raises:
        NumericalError: where predictions become NaN or infinite.
    """
    if cache is not None and not reset:
        raise InvalidInputError(
            "Streams of a cache begin with a reset, got reset=False together with cache; omit one of them."
        )
    passes = None if cache is None else FeatureCache(cache, method.classifier.model)
    [evaluation] = run_stream([method], batches, share=passes is not None, reset=reset, cache=passes)
    if evaluation.error:
        raise evaluation.error
    return evaluation.result()


class Labelled(NamedTuple):
    """What is known of the images of a batch, and predictions are measured by."""

    labels: Tensor  # (B,)
    domains: Groups
    tenths: Groups


class Evaluation:
    """One method on one stream, while it goes on."""

    def __init__(self, method: Method):
        classes = len(method.classifier.class_names)
        self.method = method
        self.metrics = StreamMetrics(classes)
        self.by_domain = GroupedMetrics(classes)
        self.by_tenth = GroupedMetrics(classes)
        self.seconds = 0.0
        self.passes = EncoderPasses()
        self._passes_before = dataclasses.replace(method.passes)
        self._mishaps_before = method.restarts, method.skipped_steps
        self.peak_memory: int | None = None
        self.error: Exception | None = None
        """Why it ended early, if it did; methods that share passes with this one go on."""

    def predict(self, predict: Callable[[], Tensor], seconds: float = 0.0) -> Tensor | None:
        """Logits of a batch, None where the method diverges; `seconds` were spent on it before."""
        start = time.perf_counter()
        try:
            logits = predict().cpu()  # within the measured time: a GPU returns before its work is done
        except Exception as error:
            if isinstance(error, TtaPandaError) and not isinstance(error, NumericalError):
                raise  # the user has to correct something
            self.error = error
            return None
        self.seconds += seconds + time.perf_counter() - start
        return logits

    def measure(self, scores: Scores, batch: Labelled) -> None:
        """Add what was predicted for a batch."""
        strengths = {"beta": self.method.beta, "gamma": self.method.gamma}
        self.metrics.update(scores, strengths)
        self.by_domain.update(batch.domains, scores, strengths)
        self.by_tenth.update(batch.tenths, scores, strengths)

    def end(self, peak_memory: int | None) -> None:
        """The stream is over; what follows on the same method is not part of it."""
        self.peak_memory = peak_memory
        self.passes = self.method.passes - self._passes_before

    def result(self) -> EvaluationResult:
        if not self.metrics.samples:
            raise DataError("The stream holds no images, so there is nothing to measure.")
        restarts, skipped_steps = self._mishaps_before
        return EvaluationResult(
            **dict(Measurement.of(self.metrics)),
            class_names=list(self.method.classifier.class_names),
            domains={name: Measurement.of(metrics) for name, metrics in self.by_domain.groups.items()},
            tenths=[Tenth.of(metrics) for metrics in self.by_tenth.groups.values()],
            restarts=self.method.restarts - restarts,
            skipped_steps=self.method.skipped_steps - skipped_steps,
            passes=PassesPerBatch.of(self.passes),
            seconds=round(self.seconds, 4),
            images_per_second=round(self.metrics.samples / max(self.seconds, 1e-9), 2),
            peak_memory=self.peak_memory,
        )


def run_stream(
    methods: Sequence[Method],
    batches: Batches,
    *,
    share: bool = True,
    reset: bool = True,
    advance: Callable[[float], None] = lambda _share: None,
    cache: FeatureCache | None = None,
) -> list[Evaluation]:
    """Take methods through one stream; frozen ones that agree on their views share their encoder passes.

    Args:
        methods: several frozen methods, or a single one of any kind.
        share: encode for frozen methods together, even for a single one: its record must not depend, not even in the
            last bits, on which others happened to be missing. False lets a single method encode for itself, as it
            would in use.
        advance: called with the share of the stream that was just done.
        cache: where the encoder passes of frozen methods that share them are kept and found.
    """
    stream = batches if isinstance(batches, Stream) else None
    if reset:
        for method in methods:
            method.reset()
    evaluations = [Evaluation(method) for method in methods]
    shares = share and isinstance(methods[0], FrozenMethod)
    step = _SharedStep(evaluations, cache) if shares else _SingleStep(*evaluations)
    memory = PeakMemory(methods[0].classifier.model.device)
    seen = 0
    for batch in batches:
        pixels, labels, domains = _checked(batch, len(methods[0].classifier.class_names))
        if not len(labels):
            continue
        step(pixels, Labelled(labels, group_images(domains), _tenths(stream, seen, len(labels))))
        seen += len(labels)
        advance(len(labels) / len(stream.plan) if stream else 0.0)
    peak_memory = memory.read()
    for evaluation in evaluations:
        evaluation.end(peak_memory)
    return evaluations


def _tenths(stream: Stream | None, seen: int, size: int) -> Groups:
    """Which tenths of a stream the next images are in; none where its length is not known."""
    if stream is None:
        return {}
    tenths, images = TENTHS * len(stream.visits), len(stream.plan)
    return group_images([place * tenths // images for place in range(seen, seen + size)])


def _checked(batch: Sequence[Any], classes: int) -> tuple[Tensor, Tensor, Sequence[str]]:
    if not isinstance(batch, Sequence) or len(batch) not in (2, 3):
        found = f"{len(batch)} items" if isinstance(batch, Sequence) else type(batch).__name__
        raise InvalidInputError(f"A stream gives (images, labels) or (images, labels, domains), got {found}.")
    images, labels = batch[0], torch.as_tensor(batch[1]).cpu()
    if labels.shape != (len(images),) or labels.is_floating_point():
        raise InvalidInputError(
            f"labels must be {len(images)} whole numbers, one for each image, got {labels.dtype} {tuple(labels.shape)}."
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InvalidInputError(
            f"Labels must lie in 0..{classes - 1} for {classes} classes, got {int(labels.min())}..{int(labels.max())}."
        )
    domains = list(batch[2]) if len(batch) == 3 else []
    if len(batch) == 3 and len(domains) != len(images):
        raise InvalidInputError(f"{len(images)} images need as many names of domains, got {len(domains)}.")
    return images, labels.long(), domains


def warm_up(method: Method, images: Tensor) -> None:
    """Do what only the first batch costs, such as taking memory and compiling kernels, before time is measured."""
    with contextlib.suppress(NumericalError):  # the stream itself will say so
        method.adapt(images)
    method.reset()


class _SingleStep:
    """Takes one method through a batch."""

    def __init__(self, evaluation: Evaluation):
        self.evaluation = evaluation

    def __call__(self, images: Tensor, batch: Labelled) -> None:
        if self.evaluation.error:
            return
        logits = self.evaluation.predict(lambda: self.evaluation.method.adapt(images))
        if logits is not None:
            self.evaluation.measure(Scores.of(logits, batch.labels), batch)


Member = tuple[Evaluation, FrozenMethod]


class _SharedStep:
    """Takes frozen methods through a batch that is encoded once; each is timed as if it had encoded alone."""

    def __init__(self, evaluations: Sequence[Evaluation], cache: FeatureCache | None):
        self.members: list[Member] = [(each, cast(FrozenMethod, each.method)) for each in evaluations]
        self.classes = len(evaluations[0].method.classifier.class_names)
        self.features = SharedFeatures([method.features for _, method in self.members], cache)

    def __call__(self, images: Tensor, batch: Labelled) -> None:
        shared = self.features.encode(images)
        at_once = max(1, LOGITS_AT_ONCE // (len(batch.labels) * self.classes))
        for start in range(0, len(self.members), at_once):
            self._measure(self.members[start : start + at_once], shared, batch)

    @staticmethod
    def _measure(members: Sequence[Member], shared: SharedBatch, batch: Labelled) -> None:
        """Let some methods predict, and measure their predictions together."""
        predicted: dict[Evaluation, Tensor] = {}
        for evaluation, method in members:
            if evaluation.error:
                continue
            encoded, seconds = shared.part_of(method.features)
            logits = evaluation.predict(partial(method.adapt_encoded, encoded), seconds)
            if logits is not None:
                predicted[evaluation] = logits
        if predicted:
            scores = Scores.of_each(torch.stack(list(predicted.values())), batch.labels)
            for evaluation, own in zip(predicted, scores, strict=True):
                evaluation.measure(own, batch)


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
