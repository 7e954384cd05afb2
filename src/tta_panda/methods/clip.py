"""Zero-shot CLIP (Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision")."""

from __future__ import annotations

from torch import Tensor

from tta_panda.methods.base import FrozenMethod
from tta_panda.methods.features import Encoded


class CLIP(FrozenMethod):
    """Zero-shot classification by cosine similarity to the class embeddings. Only its debiasing, if any, adapts."""

    def _adapt(self, encoded: Encoded) -> Tensor:
        return self.classify(encoded)
