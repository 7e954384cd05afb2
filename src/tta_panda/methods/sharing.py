"""One batch encoded for several frozen methods: its images once, its views once, and each set of negatives once.

The passes are apart from one another, so what a method gets is the same to the last bit whoever else takes part.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tta_panda.methods.features import Features
from tta_panda.panda import Batch, Debiaser, Encoded


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
        if features.debiaser is not None:
            encoded, more = self.by_negatives[features.negatives_key]
            seconds += more
        if features.views is None:
            return encoded, seconds
        return encoded._replace(views=self.views), seconds + self.views_seconds


class SharedFeatures:
    """Encodes for several streams that agree on their views."""

    def __init__(self, several: Sequence[Features]):
        first = several[0]
        views = next((features.views for features in several if features.views is not None), None)
        self.plain = Features(first.classifier, None, first.seed, views)
        self.debiasers: dict[object, Debiaser] = {}
        for features in several:
            if features.debiaser is not None and features.negatives_key not in self.debiasers:
                like = features.debiaser
                self.debiasers[features.negatives_key] = Debiaser(like.panda, like.patch_size, like.seed)

    @torch.no_grad()
    def encode(self, images: Tensor) -> SharedBatch:
        start = self._clock()
        batch = self.plain.plain(images)
        raw = self._encode(batch.images)
        plain = self.plain.split(raw, batch)
        after_plain = self._clock()
        by_negatives = {key: self._with_negatives(batch, raw, debiaser) for key, debiaser in self.debiasers.items()}
        before_views = self._clock()
        views = self.plain.encode_views(plain, batch.images).views
        seconds = self._clock() - before_views
        return SharedBatch(plain, views, by_negatives, after_plain - start, seconds)

    def _with_negatives(self, batch: Batch, raw: Tensor, debiaser: Debiaser) -> tuple[Encoded, float]:
        start = self._clock()
        drawn = debiaser.draw(batch.images)
        assert drawn.negatives is not None
        encoded = self.plain.split(torch.cat([raw, self._encode(drawn.negatives)]), drawn)
        return encoded, self._clock() - start

    def _clock(self) -> float:
        """Now, with all work done: a GPU hands its results out before."""
        device = self.plain.classifier.model.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def _encode(self, images: Tensor) -> Tensor:
        return self.plain.classifier.model.encode_image(images)
