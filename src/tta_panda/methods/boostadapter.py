"""BoostAdapter (Zhang et al. 2024, "Improving Vision-Language Test-Time Adaptation via Regional Bootstrapping")."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tta_panda.methods.features import Encoded
from tta_panda.methods.image_cache import CacheUpdate, make_entries, update_cache
from tta_panda.methods.tda import TDA
from tta_panda.methods.views import ConfidentViewMethod
from tta_panda.options import NonNegative, NonNegativeInt
from tta_panda.transfers import to_device
from tta_panda.views import Augmentation


class BoostAdapter(TDA, ConfidentViewMethod):
    """TDA whose positive cache also contains confident views of the image that is classified.

    Views enter a copy of the cache, under their own pseudo-labels; the cache itself keeps plain images only.

    The defaults are those of BoostAdapter's own code for ImageNet-R. For corruptions it used 256 views.

    Args:
        boost_slots: number of additional slots per class for views.
    """

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
        features, logits = (self.confident(each, logits) for each in (F.normalize(encoded.views, dim=-1), logits))
        entries = make_entries(features, logits)
        votes = []
        for image, key in enumerate(keys):
            views = {name: rows[image] for name, rows in entries.items()}
            cache = update_cache(positive.apply(until=image), views, self.slots + self.boost_slots).apply()
            weights = (self.sharpness * (cache["features"] @ key - 1)).exp()
            classes = to_device(cache["labels"], weights.device)
            votes.append(weights.new_zeros(logits.shape[-1]).index_add_(0, classes, weights))
        return torch.stack(votes)
