"""How long runs will take, from a few images through each of their methods."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tta_panda.errors import UnsupportedModelError
from tta_panda.evaluation.record import RunConfig
from tta_panda.evaluation.run import Runner, by_domain, open_stream, trains_encoder
from tta_panda.methods.options import build_method
from tta_panda.models.base import Classifier

_IMAGES, _IMAGES_WITH_VIEWS, _VIEWS = 20, 4, 4


class Calibration:
    """Seconds that one image takes with each method, measured when asked for, on this machine."""

    def __init__(self, classifier: Classifier, images: Tensor):
        self.classifier = classifier
        self.images = images
        self.measured: dict[tuple[str, bool], float] = {}

    def seconds(self, config: RunConfig) -> float:
        """An image with its negatives, if any; of views there are at most four."""
        key = config.method, config.panda
        if key not in self.measured:
            self.measured[key] = self._measure(config)
        return self.measured[key]

    def _measure(self, config: RunConfig) -> float:
        options = {**config.options, "views": min(_VIEWS, _views(config))} if _views(config) else config.options
        try:
            method = build_method(config.method_name, self.classifier, options, config.seed)
        except UnsupportedModelError:
            return 0.0  # it will not be run
        images = self.images[: _IMAGES_WITH_VIEWS if _views(config) else _IMAGES]
        method.adapt(images).cpu()  # a GPU hands its result out before it is done
        start = time.perf_counter()
        method.adapt(images).cpu()
        return (time.perf_counter() - start) / len(images)

    def encoding(self, config: RunConfig) -> float:
        """An image through the encoder, and no more."""
        return self.seconds(config.model_copy(update={"method": "clip", "panda": False, "options": {}}))

    def per_image(self, config: RunConfig) -> float:
        """All that an image takes with the run's own number of views."""
        seconds, views = self.seconds(config), _views(config)
        return seconds if views <= _VIEWS else seconds * views / _VIEWS

    def shared(self, configs: Sequence[RunConfig]) -> float:
        """An image with frozen methods that are encoded for together: passes once, own work each."""
        one = self.encoding(configs[0])
        negatives = {_negatives(config) for config in configs if config.panda}
        with_views = [config for config in configs if _views(config) > 1]
        encoding = one * (1 + sum(float(key[0]) for key in negatives))
        view = 0.0
        if with_views:
            # The quickest of the methods with views does little more than to encode them.
            shares = [max(0.0, self.seconds(c) - one) / (min(_VIEWS, _views(c)) - 1) for c in with_views]
            view = min((share for share in shares if share), default=0.0)  # 0: the model cannot serve it
            encoding += view * max(_views(config) - 1 for config in with_views)
        own = (self.seconds(c) - one - view * (min(_VIEWS, max(1, _views(c))) - 1) for c in configs)
        return encoding + sum(max(0.0, seconds) for seconds in own)


def estimate_seconds(configs: Sequence[RunConfig], runner: Runner) -> float:
    """Wall time of these runs by this runner, roughly."""
    if not configs:
        return 0.0
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // runner.workers))
        dataset, classifier = runner.prepare(configs[0])
        images, _ = next(iter(open_stream(configs[0].model_copy(update={"batch_size": _IMAGES}), dataset, classifier)))
        calibration = Calibration(classifier, images)
        whole = len(dataset.head(None)) if configs[0].limit is None else None
        return (
            sum(_domain_seconds(domain, calibration, runner.alone, whole) for domain in by_domain(configs))
            / runner.workers
        )
    finally:
        torch.set_num_threads(threads)


def _domain_seconds(domain: Sequence[RunConfig], calibration: Calibration, alone: bool, whole: int | None) -> float:
    images = domain[0].limit or whole or 1000
    frozen = [config for config in domain if not (alone or trains_encoder(config))]
    seconds = sum(calibration.per_image(config) for config in domain if alone or trains_encoder(config))
    return images * (seconds + (calibration.shared(frozen) if frozen else 0.0))


def _views(config: RunConfig) -> int:
    return int(config.options.get("views", 0))


def _negatives(config: RunConfig) -> tuple[Any, ...]:
    """How many negatives an image costs, and what else tells their sets apart."""
    options = config.options
    ratio = 1.0 if options["sampler"] == "within_image" else options["ratio"]
    return ratio, options["sampler"], options["average"], options["patch_size"]
