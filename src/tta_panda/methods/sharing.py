"""Encode a batch once for several frozen methods: its images, its views, and each set of negatives.

The passes are separate, so the features of a method are the same to the last bit, whichever others take part.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tta_panda.methods.features import Batch, Encode, Encoded, Features, encode_images, isolated
from tta_panda.models.checkpoints import tensors_hash
from tta_panda.models.devices import clock
from tta_panda.models.feature_cache import FeatureCache, Pass


class SharedBatch(NamedTuple):
    """The embeddings of a batch, and the seconds that each pass took."""

    plain: Encoded
    views: Tensor | None
    by_negatives: dict[object, tuple[Encoded, float]]
    plain_seconds: float
    views_seconds: float

    def part_for(self, features: Features) -> tuple[Encoded, float]:
        """Return the embeddings that one stream needs, and the seconds that their passes took."""
        encoded, seconds = self.plain, self.plain_seconds
        if features.source is not None:
            encoded, more = self.by_negatives[features.source.key]
            seconds += more
        if features.views is None:
            return encoded, seconds
        return encoded._replace(views=self.views), seconds + self.views_seconds


class SharedFeatures:
    """Encodes batches for several streams that use the same views, with an optional cache."""

    def __init__(self, several: Sequence[Features], cache: FeatureCache | None = None):
        viewing = next((features for features in several if features.views is not None), several[0])
        self._plain = Features(viewing.classifier, None, viewing.seed, viewing.views)
        self._model = viewing.classifier.model
        self._by_negatives: dict[object, Features] = {}
        for features in several:
            if features.source is not None and features.source.key not in self._by_negatives:
                settings = dataclasses.replace(features.source.settings, beta=1.0)  # any beta that draws negatives
                own = Features(features.classifier, settings, features.seed)
                self._by_negatives[features.source.key] = own
        self._cache = cache
        self._history = ""  # a hash of all batches so far: negatives and views may depend on earlier ones
        self._saved = 0.0  # seconds saved so far by reading instead of encoding

    @torch.no_grad()
    def encode(self, images: Tensor) -> SharedBatch:
        with isolated(self._model.device):
            content = ""
            if self._cache is not None:
                content = tensors_hash({"images": images})
                self._history = hashlib.sha256(f"{self._history} {content}".encode()).hexdigest()
            start = self._clock()
            batch = self._plain.prepare(images)
            raw = self._once(f"images {content}", lambda: encode_images(self._model, batch.images))
            plain = self._plain.split(raw)._replace(images=batch.originals)
            after_plain = self._clock()
            by_negatives = {
                key: self._with_negatives(batch, raw, features) for key, features in self._by_negatives.items()
            }
            before_views = self._clock()
            encode_views = partial(self._once, f"{self._plain.views_key} {self._history}")
            views = self._plain.encode_views(plain, batch, encode_views).views
            return SharedBatch(plain, views, by_negatives, after_plain - start, self._clock() - before_views)

    def _with_negatives(self, batch: Batch, raw: Tensor, features: Features) -> tuple[Encoded, float]:
        start = self._clock()
        negatives = features.draw(batch.images)
        assert negatives is not None and features.source is not None
        if len(negatives.images):
            key = f"{features.source.key} {self._history}"
            raw = torch.cat([raw, self._once(key, lambda: encode_images(self._model, negatives.images))])
        encoded = features.split(raw, negatives)._replace(images=batch.originals)
        return encoded, self._clock() - start

    def _clock(self) -> float:
        """Return the time, counting a cached pass with the seconds that it took to compute."""
        return clock(self._model.device) + self._saved

    def _once(self, key: str, encode: Encode) -> Tensor:
        """Read a pass from the cache, or run it and add it to the cache."""
        if self._cache is None:
            return encode()
        start = self._clock()
        found = self._cache.load(key)
        if found is None:
            before = self._clock()
            features = encode()
            found = Pass(features, self._clock() - before)
            self._cache.save(key, found)
        self._saved += start + found.seconds - self._clock()
        return found.features
