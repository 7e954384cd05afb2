"""The evaluation loop: one stream of images through methods, labels against logits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor

from tta_panda.data.stream import Stream
from tta_panda.errors import NumericalError
from tta_panda.evaluation.memory import PeakMemory
from tta_panda.evaluation.metrics import TalliesByTenth, Tally
from tta_panda.methods.base import FrozenMethod, Method
from tta_panda.methods.passes import EncoderPasses
from tta_panda.methods.sharing import SharedFeatures


class Evaluation:
    """One method on one stream, while it goes on."""

    def __init__(self, method: Method, classes: int, images: int):
        self.method = method
        self.tally = Tally(classes)
        self.tenths = TalliesByTenth(classes, images)
        self.seconds = 0.0
        self.betas: list[float] = []
        self.passes = EncoderPasses()
        self.peak_memory: int | None = None
        self.divergence: NumericalError | None = None
        """Why it ended early, if it did; methods that share passes with this one go on."""

    def update(self, logits: Tensor, labels: Tensor, seconds: float) -> None:
        try:
            self.tally.update(logits, labels)
        except NumericalError as error:
            self.divergence = error
            return
        self.tenths.update(logits, labels)
        self.seconds += seconds
        self.passes = self.method.passes
        if self.method.features.debiaser is not None:
            self.betas.append(self.method.features.debiaser.beta)


def evaluate(
    methods: Sequence[Method],
    stream: Stream,
    advance: Callable[[float], None] = lambda _share: None,
    *,
    alone: bool = False,
) -> list[Evaluation]:
    """Run methods that can share their encoder passes (see `shared_passes`) over one stream, from a fresh state.

    `alone` lets a single method encode for itself even if it could share, as it would in use: for measuring time.
    """
    classes, images = len(stream.dataset.class_names), len(stream.dataset)
    evaluations = [Evaluation(method, classes, images) for method in methods]
    for method in methods:
        method.reset()
    # A frozen method takes the shared way even when it is the only one left: its record does not depend, not even in
    # the last bits, on which others happened to be missing.
    by_itself = len(methods) == 1 and (alone or not isinstance(methods[0], FrozenMethod))
    if alone:
        _warm_up(methods, stream)
    update = _Alone(*evaluations) if by_itself else _Together(evaluations)
    memory = PeakMemory(methods[0].classifier.model.device)
    for batch, labels in stream:
        update(batch, labels)
        advance(len(labels) / images)
    for evaluation in evaluations:
        evaluation.peak_memory = memory.read()
        evaluation.method.reset()
    return evaluations


def _warm_up(methods: Sequence[Method], stream: Stream) -> None:
    """What only the first batch costs, such as taking memory and compiling kernels, is no method's time."""
    images, _ = next(iter(stream))
    for method in methods:
        method.adapt(images)
        method.reset()


class _Alone:
    """Takes one method through a batch."""

    def __init__(self, evaluation: Evaluation):
        self.evaluation = evaluation

    def __call__(self, images: Tensor, labels: Tensor) -> None:
        if self.evaluation.divergence:
            return
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
