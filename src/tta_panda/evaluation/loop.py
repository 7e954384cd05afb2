"""The evaluation loop: methods adapt to a stream of images, and their predictions are compared with the labels."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from tta_panda.data.stream import Stream
from tta_panda.errors import DataError, InvalidInputError, NumericalError, TtaPandaError
from tta_panda.evaluation.batches import labelled_batches
from tta_panda.evaluation.memory import peak_memory, reset_peak_memory
from tta_panda.evaluation.metrics import Counts, Scores, StreamMetrics
from tta_panda.evaluation.record import Encoded, EvaluationResult, Measurement
from tta_panda.methods.base import EncoderPasses, FrozenMethod, Method
from tta_panda.methods.sharing import SharedBatch, SharedFeatures
from tta_panda.models.base import framing_of
from tta_panda.models.feature_cache import FeatureCache
from tta_panda.models.prepare import as_batch
from tta_panda.options import Count, check_option

Part = tuple[Literal["domain", "tenth"], Any]
"""A part of a stream that is measured by itself."""

TENTHS = 10

LOGITS_AT_ONCE = 2**17
"""At most this many logits of methods that share a batch are scored together: they fit into a CPU's cache."""


def evaluate(
    method: Method,
    data: Any,
    *,
    batch_size: int = 100,
    window: int | None = None,
    reset: bool = True,
    cache: Path | str | None = None,
) -> EvaluationResult:
    """Adapt to a labelled stream and measure the predictions.

    Args:
        method: the method, which never sees a label.
        data: batches (images, labels) from a `Stream`, a `torch.utils.data.DataLoader` or a list; or a data set of
            pairs (image, label), such as torchvision's, which is read in its order. Items may be dictionaries, as in
            Hugging Face's `datasets`, with `image` (or `img`, `pixel_values`) and `label` (or `labels`). If batches are
            (images, labels, domains), with a domain name for each image, every domain is also measured by itself.
            Images with the label -1 show none of the classes. The method adapts to them, and `auroc` measures how well
            its logits tell them from the others; all other metrics omit them.
        batch_size: images in a batch, if `data` consists of single images.
        window: for batches of one image: predict each among this many of the last images, and adapt whenever all of
            them are new.
        reset: start from a fresh state. False continues from the method's current one.
        cache: folder with a cache of encoder passes, used by all frozen methods on the same batches. Images and
            negatives are then encoded in separate passes, which can change the last bits of a float. Methods that
            train the encoder do not use it.

    Raises:
        NumericalError: if predictions become NaN or infinite.
    """
    if cache is not None and not reset:
        raise InvalidInputError("With a cache, the method must be reset first: omit either cache or reset=False.")
    passes = None if cache is None else FeatureCache(cache, method.classifier.model)
    share = passes is not None
    [evaluation] = run_stream(
        [method], data, batch_size=batch_size, window=window, share=share, reset=reset, cache=passes
    )
    if evaluation.error:
        raise evaluation.error
    return evaluation.result()


class SlidingWindow:
    """Single images for a method that needs batches: each is predicted among the last ones.

    The method adapts whenever all images in the window are new; its state does not change in between.
    """

    def __init__(self, method: Method, length: int):
        self.method = method
        self.length = check_option("window", length, Count)
        self._images: Tensor | None = None
        self._seen = 0

    def adapt(self, image: Tensor) -> Tensor:
        """Return the logits (1, K) of an image (1, 3, H, W)."""
        if len(image) != 1:
            raise InvalidInputError(f"A window needs batches of one image, got {len(image)} images.")
        before = image if self._images is None else torch.cat([self._images, image])
        self._images = before[-self.length :]
        self._seen += 1
        state = self.method.state_dict() if self._seen % self.length else None
        logits = self.method.adapt(self._images)[-1:]
        if state is not None:
            self.method.load_state_dict(state)
        return logits


class Evaluation:
    """An evaluation of one method on one stream, in progress."""

    def __init__(self, method: Method, window: int | None = None):
        classes = len(method.classifier.class_names)
        self.method = method
        self.window = None if window is None else SlidingWindow(method, window)
        self.metrics = StreamMetrics(classes)
        self.parts: dict[Part, StreamMetrics] = defaultdict(partial(StreamMetrics, classes))
        self.seconds = 0.0
        self.peak_memory: int | None = None
        self.error: Exception | None = None
        """The error that ended it early, if any; methods that share passes with this one continue."""
        self._passes_before = dataclasses.replace(method.passes)
        self._counters_before = method.restarts, method.skipped_steps

    def adapt(self, images: Tensor, shared: SharedBatch | None) -> Tensor | None:
        """Adapt to a batch, which may be encoded already; return logits (B, K) on the CPU, or None after a failure."""
        if self.error:
            return None
        adapt, seconds = partial((self.window or self.method).adapt, images), 0.0
        if shared is not None:
            encoded, seconds = shared.part_for(self.method.features)
            adapt = partial(cast(FrozenMethod, self.method).adapt_encoded, encoded)
        start = time.perf_counter()
        try:
            logits = adapt().cpu()  # within the measured time: a GPU returns before its work is done
        except Exception as error:
            if isinstance(error, TtaPandaError) and not isinstance(error, NumericalError):
                raise  # the user has to correct something
            self.error = error
            return None
        self.seconds += seconds + time.perf_counter() - start
        return logits

    def measure(self, scores: Scores, parts: Mapping[Part, Counts]) -> None:
        """Add the scores of a batch; `parts` has the indices of its images that belong to each part of the stream."""
        strengths = {"beta": self.method.beta, "gamma": self.method.gamma}
        if self.method.p_values is not None and self.window is None:  # a window restores those of an earlier batch
            scores = scores._replace(p_values=self.method.p_values.cpu().double().numpy())
        self.metrics.update(scores, strengths)
        for part, indices in parts.items():
            self.parts[part].update(scores.select(indices), strengths)

    @property
    def passes(self) -> EncoderPasses:
        """Encoder passes of the method on this stream."""
        return self.method.passes - self._passes_before

    def result(self) -> EvaluationResult:
        if not self.metrics.samples:
            raise DataError("The stream holds no images of the classes, so there is nothing to measure.")
        restarts, skipped_steps = self._counters_before
        passes = self.passes
        parts = {
            (kind, name): Measurement.of(part, with_lists=kind == "domain")
            for (kind, name), part in self.parts.items()
            if part.samples
        }
        return EvaluationResult(
            **dict(Measurement.of(self.metrics)),
            class_names=list(self.method.classifier.class_names),
            domains={name: part for (kind, name), part in parts.items() if kind == "domain"},
            tenths=[part for (kind, _), part in parts.items() if kind == "tenth"],
            explanation=self.method.explain(),
            restarts=self.method.restarts - restarts,
            skipped_steps=self.method.skipped_steps - skipped_steps,
            passes={kind: getattr(passes, kind) / max(1, passes.batches) for kind in get_args(Encoded)},
            seconds=round(self.seconds, 4),
            images_per_second=round((self.metrics.samples + self.metrics.unknown) / max(self.seconds, 1e-9), 2),
            peak_memory=self.peak_memory,
        )


def run_stream(
    methods: Sequence[Method],
    data: Any,
    *,
    batch_size: int = 100,
    window: int | None = None,
    share: bool = True,
    reset: bool = True,
    report: Callable[[float], None] = lambda _share: None,
    cache: FeatureCache | None = None,
) -> list[Evaluation]:
    """Run methods on one stream; frozen methods that use the same views share their encoder passes.

    Args:
        methods: methods with the same classifier.
        data, batch_size, window: as `evaluate` takes them; the data are read once for every group of methods that share
            passes, which a window excludes.
        share: use shared encoder passes for frozen methods, even for a single one, so that its record is the same to
            the last bit whichever others run with it. False lets every method encode for itself, as outside of
            evaluations.
        report: called with the share of the work that was just done.
        cache: cache of the encoder passes that frozen methods share.
    """
    if batch_size < 1:
        raise InvalidInputError(f"batch_size must be at least 1, got {batch_size}.")
    if reset:
        for method in methods:
            method.reset()
    share = share and window is None
    evaluations = [Evaluation(method, window) for method in methods]
    for group in group_by_shared_passes(methods) if share else [[index] for index in range(len(methods))]:
        members = [evaluations[index] for index in group]
        shares = share and isinstance(members[0].method, FrozenMethod)
        features = SharedFeatures([each.method.features for each in members], cache) if shares else None
        _run_group(members, data, batch_size, features, partial(_report_part, report, len(group) / len(methods)))
    return evaluations


def _report_part(report: Callable[[float], None], part: float, share: float) -> None:
    report(part * share)


def _run_group(
    evaluations: Sequence[Evaluation],
    data: Any,
    batch_size: int,
    features: SharedFeatures | None,
    report: Callable[[float], None],
) -> None:
    """Run methods that share encoder passes, or a single one, on a stream."""
    stream = data if isinstance(data, Stream) else None
    classifier = evaluations[0].method.classifier
    reset_peak_memory(classifier.model.device)
    seen = 0
    for images, labels, domains in labelled_batches(data, len(classifier.class_names), batch_size):
        if not len(labels):
            continue
        images = as_batch(images, framing_of(classifier.model))
        shared = features.encode(images) if features else None
        parts = _parts(domains, stream, seen)
        at_once = max(1, LOGITS_AT_ONCE // (len(labels) * len(classifier.class_names)))
        for start in range(0, len(evaluations), at_once):
            logits = {each: each.adapt(images, shared) for each in evaluations[start : start + at_once]}
            found = {each: own for each, own in logits.items() if own is not None}
            if found:
                scores = Scores.of_each(torch.stack(list(found.values())), labels)
                for each, own in zip(found, scores, strict=True):
                    each.measure(own, parts)
        seen += len(labels)
        report(len(labels) / len(stream.plan) if stream else 0.0)
    peak = peak_memory(classifier.model.device)
    for evaluation in evaluations:
        evaluation.peak_memory = peak


def _parts(domains: Sequence[str | None], stream: Stream | None, seen: int) -> Mapping[Part, Counts]:
    """Indices of the images of a batch by domain, and by tenth if the length of the stream is known."""
    indices: dict[Part, list[int]] = {}
    for index, domain in enumerate(domains):
        if domain is not None:
            indices.setdefault(("domain", domain), []).append(index)
        if stream is not None:
            tenth = (seen + index) * TENTHS * len(stream.visits) // len(stream.plan)
            indices.setdefault(("tenth", tenth), []).append(index)
    return {part: np.array(found) for part, found in indices.items()}


def warm_up(method: Method, images: Tensor) -> None:
    """Adapt to a batch and reset, so that the costs of a first batch (memory, kernels) are not timed."""
    with contextlib.suppress(NumericalError):  # reported by the evaluation that follows
        method.adapt(images)
    method.reset()


def group_by_shared_passes(methods: Iterable[Method]) -> list[list[int]]:
    """Group methods that can share encoder passes; return the indices of each group.

    Methods that train the encoder are alone. Frozen methods with the same views form a group; one that uses no views
    fits into any.
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
