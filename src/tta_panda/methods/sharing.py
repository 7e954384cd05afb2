"""One batch encoded for several frozen methods: its images once, its views once, and each set of negatives once.

The passes are separate, so what a method gets is the same to the last bit, whoever else takes part.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tta_panda.methods.feature_cache import FeatureCache, StreamPasses
from tta_panda.methods.features import Batch, Encoded, Features, encode_images, isolated


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
        viewing = next((features for features in several if features.views is not None), several[0])
        self._plain = Features(viewing.classifier, None, viewing.seed, viewing.views)
        self._model = viewing.classifier.model
        self._passes = StreamPasses(self._model.device, cache)
        self._by_negatives: dict[object, Features] = {}
        for features in several:
            if features.source is not None and features.source.key not in self._by_negatives:
                drawing = dataclasses.replace(features.source.settings, beta=1.0)  # any that draws
                own = Features(features.classifier, drawing, features.seed)
                self._by_negatives[features.source.key] = own

    @torch.no_grad()
    def encode(self, images: Tensor) -> SharedBatch:
        with isolated(self._model.device):
            clock = self._passes.clock
            start = clock()
            batch = self._plain.prepare(images)
            self._passes.enter(images)
            raw = self._passes.encode_images(lambda: encode_images(self._model, batch.images))
            plain = self._plain.split(raw)
            after_plain = clock()
            by_negatives = {key: self._with_negatives(batch, raw, of) for key, of in self._by_negatives.items()}
            before_views = clock()
            encode_views = partial(self._passes.encode_drawn, self._plain.views_key)
            views = self._plain.encode_views(plain, batch, encode_views).views
            return SharedBatch(plain, views, by_negatives, after_plain - start, clock() - before_views)

    def _with_negatives(self, batch: Batch, raw: Tensor, features: Features) -> tuple[Encoded, float]:
        start = self._passes.clock()
        negatives = features.draw(batch.images)
        assert negatives is not None and features.source is not None
        if len(negatives.images):
            key = features.source.key
            own = self._passes.encode_drawn(key, lambda: encode_images(self._model, negatives.images))
            raw = torch.cat([raw, own])
        encoded = features.split(raw, negatives)
        return encoded, self._passes.clock() - start
