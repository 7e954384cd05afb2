"""How long runs will take, from a few images through each group of methods that would run together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tta_panda.errors import UnsupportedModelError
from tta_panda.evaluation.config import RunConfig, by_stream
from tta_panda.evaluation.evaluator import Evaluator, open_stream
from tta_panda.evaluation.loop import run_stream
from tta_panda.evaluation.run import Runner
from tta_panda.executors import available_cores
from tta_panda.methods.base import Method
from tta_panda.models import Classifier

_IMAGES = 40
"""How many images, their views included, a group of methods is measured on."""


def estimate_seconds(configs: Sequence[RunConfig], runner: Runner) -> float:
    """Wall time of these runs by this runner, roughly. Domains are taken to be like the first of them."""
    if not configs:
        return 0.0
    threads, workers = torch.get_num_threads(), getattr(runner.executor, "workers", None) or 1
    dataset, classifier = runner.evaluator.load(configs[0].stream)
    first = open_stream(replace(configs[0].stream, batch_size=_IMAGES), dataset, classifier)
    images, of_domain = next(iter(first))[0], len(first.plan) // len(first.visits)
    measured: dict[tuple[object, ...], float] = {}
    total = 0.0
    try:
        torch.set_num_threads(max(1, available_cores() // workers))
        for stream, members in by_stream(configs).items():
            methods = tuple(config.method for config in members)
            if methods not in measured:
                measured[methods] = _seconds_per_image(members, runner.evaluator, classifier, images)
            total += measured[methods] * min(stream.limit or of_domain, of_domain) * len(stream.visits)
    finally:
        torch.set_num_threads(threads)
    return total / workers


def _seconds_per_image(
    members: Sequence[RunConfig], evaluator: Evaluator, classifier: Classifier, images: Tensor
) -> float:
    methods: list[Method] = []
    for config in members:
        try:
            methods.append(evaluator.build(config, classifier))
        except UnsupportedModelError:
            continue  # it will not be run
    share = not evaluator.timed
    return sum(_measure([methods[i] for i in group], images, share) for group in evaluator.groups(methods))


def _measure(methods: Sequence[Method], images: Tensor, share: bool) -> float:
    views = max((method.features.views.count for method in methods if method.features.views), default=1)
    few = images[: max(2, len(images) // views)]
    batches = [(few, torch.zeros(len(few), dtype=torch.int64))]
    run_stream(methods, batches, share=share)  # what only the first batch costs
    start = time.perf_counter()
    run_stream(methods, batches, share=share)
    return (time.perf_counter() - start) / len(few)
