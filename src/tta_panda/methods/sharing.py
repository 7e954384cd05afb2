"""One batch encoded for several frozen methods: its images once, its views once, and each set of negatives once.

The passes are separate, so what a method gets is the same to the last bit, whichever others take part.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tta_panda.methods.batch import Batch, Encoded
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
    """Encodes for several streams that agree on their views."""

    def __init__(self, several: Sequence[Features]):
        first = several[0]
        self._model = first.classifier.model
        self._plain = Features(first.classifier, None, first.seed)
        self._plain.views = next((features.views for features in several if features.views is not None), None)
        self._by_negatives: dict[object, Features] = {}
        for features in several:
            if features.source is not None:
                drawing = dataclasses.replace(features.source.panda, beta=1.0)  # any that draws
                own = Features(features.classifier, drawing, features.seed)
                self._by_negatives.setdefault(features.source.key, own)

    @torch.no_grad()
    def encode(self, images: Tensor) -> SharedBatch:
        with undisturbed(self._model.device):
            start = self._clock()
            batch = self._plain.prepare(images)
            raw = self._model.encode_image(batch.images)
            plain = self._plain.split(raw)
            after_plain = self._clock()
            by_negatives = {key: self._with_negatives(batch, raw, of) for key, of in self._by_negatives.items()}
            before_views = self._clock()
            views = self._plain.encode_views(plain, batch).views
            return SharedBatch(plain, views, by_negatives, after_plain - start, self._clock() - before_views)

    def _with_negatives(self, batch: Batch, raw: Tensor, features: Features) -> tuple[Encoded, float]:
        start = self._clock()
        negatives = features.draw(batch.images)
        assert negatives is not None
        if len(negatives.images):
            raw = torch.cat([raw, self._model.encode_image(negatives.images)])
        encoded = features.split(raw, negatives)
        return encoded, self._clock() - start

    def _clock(self) -> float:
        """Now, with all work done: a GPU returns before its results are there."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)
        return time.perf_counter()
