"""One batch encoded for several frozen methods: its images once, its views once, and each set of negatives once.

The passes are separate, so what a method gets is the same to the last bit, whichever others take part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tta_panda.methods.batch import Batch, Encoded
from tta_panda.methods.cache import FeatureCache, StreamPasses
from tta_panda.methods.features import Features, undisturbed


class SharedBatch(NamedTuple):
    """What came out of the passes over a batch, and the seconds that each took."""

    plain: Encoded
    views: Tensor | None
    by_negatives: dict[object, tuple[Encoded, float]]
    plain_seconds: float
    views_seconds: float

    def part_of(self, features: Features) -> tuple[Encoded, float]:
        """What one stream would have encoded for itself, and the time that this took."""
        encoded, seconds = self.plain, self.plain_seconds
        if features.source is not None:
            encoded, more = self.by_negatives[features.source.key]
            seconds += more
        if features.views is None:
            return encoded, seconds
        return encoded._replace(views=self.views), seconds + self.views_seconds


class SharedFeatures:
    """Encodes for several streams that agree on their views; what a cache has is not encoded again."""

    def __init__(self, several: Sequence[Features], cache: FeatureCache | None = None):
        first = several[0]
        self._model = first.classifier.model
        self._passes = StreamPasses(self._model.device, cache)
        self._plain = Features(first.classifier, None, first.seed)
        self._plain.views = next((features.views for features in several if features.views is not None), None)
        self._by_negatives: dict[object, Features] = {}
        for features in several:
            if features.source is not None and features.source.key not in self._by_negatives:
                drawing = dataclasses.replace(features.source.settings, beta=1.0)  # any that draws
                own = Features(features.classifier, drawing, features.seed)
                self._by_negatives[features.source.key] = own

    @torch.no_grad()
    def encode(self, images: Tensor) -> SharedBatch:
        with undisturbed(self._model.device):
            clock = self._passes.clock
            start = clock()
            batch = self._plain.prepare(images)
            self._passes.enter(images)
            raw = self._passes.of_images(lambda: self._model.encode_image(batch.images))
            plain = self._plain.split(raw)
            after_plain = clock()
            by_negatives = {key: self._with_negatives(batch, raw, of) for key, of in self._by_negatives.items()}
            before_views = clock()
            views = self._plain.encode_views(plain, batch, partial(self._passes.of_drawn, self._plain.views_key)).views
            return SharedBatch(plain, views, by_negatives, after_plain - start, clock() - before_views)

    def _with_negatives(self, batch: Batch, raw: Tensor, features: Features) -> tuple[Encoded, float]:
        start = self._passes.clock()
        negatives = features.draw(batch.images)
        assert negatives is not None and features.source is not None
        if len(negatives.images):
            own = self._passes.of_drawn(features.source.key, lambda: self._model.encode_image(negatives.images))
            raw = torch.cat([raw, own])
        encoded = features.split(raw, negatives)
        return encoded, self._passes.clock() - start
