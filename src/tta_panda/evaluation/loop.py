"""The evaluation loop: one stream of images through methods, labels against logits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from tta_panda.data.stream import Stream
from tta_panda.evaluation.metrics import Tally
from tta_panda.methods.base import FrozenMethod, Method
from tta_panda.methods.features import Features
from tta_panda.methods.passes import EncoderPasses


class Evaluation:
    """One method on one stream, while it goes on."""

    def __init__(self, method: Method, classes: int):
        self.method = method
        self.tally = Tally(classes)
        self.seconds = 0.0
        self.betas: list[float] = []
        self.passes = EncoderPasses()

    def update(self, logits: Tensor, labels: Tensor, seconds: float) -> None:
        self.tally.update(logits, labels)
        self.seconds += seconds
        self.passes = self.method.passes
        if self.method.features.debiaser is not None:
            self.betas.append(self.method.features.debiaser.beta)


def evaluate(
    methods: Sequence[Method], stream: Stream, advance: Callable[[float], None] = lambda _share: None
) -> list[Evaluation]:
    """Run methods that can share their encoder passes (see `shared_passes`) over one stream, from a fresh state."""
    evaluations = [Evaluation(method, len(stream.dataset.class_names)) for method in methods]
    for method in methods:
        method.reset()
    update = _Alone(*evaluations) if len(evaluations) == 1 else _Together(evaluations)
    for images, labels in stream:
        update(images, labels)
        advance(len(labels) / len(stream.dataset))
    for method in methods:
        method.reset()
    return evaluations


class _Alone:
    """Takes one method through a batch."""

    def __init__(self, evaluation: Evaluation):
        self.evaluation = evaluation

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        start = time.perf_counter()
        # To the CPU within the measured time: a GPU hands its result out before it is done.
        logits = self.evaluation.method.adapt(images).cpu()
        self.evaluation.update(logits, labels, time.perf_counter() - start)


class _Together:
    """Takes frozen methods through a batch that is encoded once; each is billed for what it would need alone."""

    def __init__(self, evaluations: Sequence[Evaluation]):
        self.members: list[tuple[Evaluation, FrozenMethod]] = []
        for evaluation in evaluations:
            if not isinstance(evaluation.method, FrozenMethod):
                raise TypeError(f"{type(evaluation.method).__name__} trains its encoder and cannot share a pass.")
            self.members.append((evaluation, evaluation.method))
        self.features = Features.covering([method.features for _, method in self.members])

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        start = time.perf_counter()
        batch = self.features.draw(images)
        encoded = self.features.encode_plain(batch)
        plain = time.perf_counter() - start
        encoded = self.features.encode_views(encoded, batch.images)
        with_views = time.perf_counter() - start
        for evaluation, method in self.members:
            start = time.perf_counter()
            logits = method.adapt_encoded(encoded).cpu()
            own = time.perf_counter() - start
            evaluation.update(logits, labels, own + (plain if method.features.views is None else with_views))


def shared_passes(methods: Iterable[Method]) -> list[list[int]]:
    """Indices of methods in groups that can work on the same encoded batches.

    Methods that train the encoder stand alone. Frozen ones go together as long as they agree on negatives and views;
    one that uses none of either agrees with any.
    """
    alone: list[list[int]] = []
    groups: list[tuple[list[object], list[int]]] = []
    for index, method in enumerate(methods):
        if not isinstance(method, FrozenMethod):
            alone.append([index])
            continue
        keys = [method.features.negatives_key, method.features.views_key]
        for shared, members in groups:
            if all(a is None or b is None or a == b for a, b in zip(shared, keys, strict=True)):
                shared[:] = [a if b is None else b for a, b in zip(shared, keys, strict=True)]
                members.append(index)
                break
        else:
            groups.append((keys, [index]))
    return [members for _, members in groups] + alone
