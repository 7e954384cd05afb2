"""What TPT, TPS and Zero share: many views of each image, of which the most confident ones count."""

from __future__ import annotations

from typing import TypedDict, Unpack

from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.errors import InvalidInputError
from tta_panda.methods.base import FrozenMethod, MethodOptions
from tta_panda.methods.batch import Encoded
from tta_panda.methods.features import Views
from tta_panda.methods.losses import by_confidence
from tta_panda.models.base import Classifier
from tta_panda.views import Augmentation


class ViewOptions(MethodOptions, TypedDict, total=False):
    """The arguments of every method with views."""

    views: int
    keep: float
    augmentation: Augmentation


class ViewMethod(FrozenMethod):
    """A method that works on augmented views of single images, and remembers nothing.

    Args:
        views: how many of each image, the plain one included.
        keep: share of them, the lowest in entropy, that counts; at least one does.
        augmentation: `"augmix"`, or `"crops"` for crops and flips only.
        common: the arguments of every method.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        views: int = 64,
        keep: float = 0.1,
        augmentation: Augmentation = "augmix",
        **common: Unpack[MethodOptions],
    ):
        super().__init__(classifier, **common)
        check_range("views", views, 1)
        check_range("keep", keep, 0, 1)
        self.features.views = Views(views, augmentation)
        self.keep = keep

    def view_features(self, encoded: Encoded) -> Tensor:
        """What the method works with: features (B, V, D) of all views."""
        if encoded.views is None:
            raise InvalidInputError("This batch was encoded without views; encode it with a method that uses them.")
        return encoded.debiased_views

    def rank(self, logits: Tensor) -> tuple[Tensor, int]:
        """Views by rising entropy, as indices (B, V) into logits (B, V, K), and how many of the first count."""
        return by_confidence(logits), max(1, int(self.keep * logits.shape[1] + 1e-9))

    def view_logits(self, encoded: Encoded) -> Tensor:
        """Logits (B, V, K) of all views."""
        return self.classifier.logits(self.view_features(encoded), self.class_embeddings) + encoded.bias
