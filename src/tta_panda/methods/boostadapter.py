"""BoostAdapter (Zhang et al. 2024, "Improving Vision-Language Test-Time Adaptation via Regional Bootstrapping")."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.features import Encoded
from tta_panda.methods.image_cache import CacheUpdate, update_cache
from tta_panda.methods.losses import entropy, top_class
from tta_panda.methods.tda import TDA
from tta_panda.methods.views import ViewMethod, by_confidence, count_kept
from tta_panda.options import NonNegative, NonNegativeInt, Share
from tta_panda.transfers import to_device, to_host
from tta_panda.views import Augmentation


class BoostAdapter(TDA, ViewMethod):
    """TDA whose positive cache also contains confident views of the image that is classified.

    Views enter a copy of the cache, under their own pseudo-labels; the cache itself keeps plain images only.

    The defaults are those of BoostAdapter's own code for ImageNet-R. For corruptions it used 256 views.

    Args:
        keep: fraction of the views, those with the lowest entropy, that enters; at least one view does.
        boost_slots: number of additional slots per class for views.
        augmentation: `"augmix"`, or `"crops"` for crops and flips only.
        alpha: weight of the positive cache.
        sharpness: how fast the weight of an image decreases with distance.
    """

    keep: Share = 0.1
    boost_slots: NonNegativeInt = 3
    augmentation: Augmentation = "crops"
    alpha: NonNegative = 1.0
    sharpness: NonNegative = 8.0

    @property
    def _forgets_oldest(self) -> bool:
        return self.follows_reference

    def _votes(self, encoded: Encoded, positive: CacheUpdate, keys: Tensor) -> Tensor:
        assert encoded.views is not None
        logits = self.view_logits(encoded)  # (B, V, K)
        count = count_kept(self.keep, self.views)
        features = by_confidence(F.normalize(encoded.views, dim=-1), logits)[:, :count]
        logits = by_confidence(logits, logits)[:, :count]
        labels, entropies = to_host(top_class(logits), entropy(logits))
        votes = []
        for image, key in enumerate(keys):
            views = {"features": features[image], "labels": labels[image], "entropies": entropies[image]}
            cache = update_cache(positive.apply(until=image), views, self.slots + self.boost_slots).apply()
            weights = (self.sharpness * (cache["features"] @ key - 1)).exp()
            classes = to_device(cache["labels"], weights.device)
            votes.append(weights.new_zeros(logits.shape[-1]).index_add_(0, classes, weights))
        return torch.stack(votes)
