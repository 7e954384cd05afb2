"""Zero-shot CLIP (Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision")."""

from __future__ import annotations

from torch import Tensor

from tta_panda.methods.base import FrozenMethod, Protocol
from tta_panda.models.base import Classifier
from tta_panda.panda import Encoded, Panda


class CLIP(FrozenMethod):
    """Cosine similarity to the class names' embeddings; nothing adapts but what `debias` brings."""

    def __init__(
        self,
        classifier: Classifier,
        *,
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
    ):
        super().__init__(classifier, debias=debias, protocol=protocol, seed=seed)

    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        return self.classifier.logits(self.features.debias(encoded))
