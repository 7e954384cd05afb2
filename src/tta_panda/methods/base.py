"""The base classes of methods: their interface, common options, and declared state."""

from __future__ import annotations

import dataclasses
import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError, NumericalError, UnsupportedModelError
from tta_panda.methods import METHODS, MethodName
from tta_panda.methods.features import Encoded, Features, Views, encode_images, isolated
from tta_panda.methods.state import check_state, describe, write_state
from tta_panda.models.base import Classifier, ZeroShotClassifier
from tta_panda.models.prepare import Images
from tta_panda.options import HasOptions, Seed, check_option
from tta_panda.panda import Beta, Debias
from tta_panda.panda.negatives import SamplerName
from tta_panda.state import Stateful

Protocol = Literal["paper", "reference"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

SAMPLER: dict[str, SamplerName] = {"paper": "pool", "reference": "same_cell"}
"""The default sampler of negatives by protocol."""


@dataclass
class EncoderPasses:
    """Number of images and texts that a method encodes, with and without gradient.

    This measures cost independently of the machine.
    """

    batches: int = 0
    images: int = 0
    images_with_gradient: int = 0
    texts: int = 0
    texts_with_gradient: int = 0

    def __sub__(self, earlier: EncoderPasses) -> EncoderPasses:
        """Return the passes since an earlier count."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(earlier), strict=True)
        return EncoderPasses(*(now - then for now, then in pairs))

    def count(self, kind: Literal["images", "texts"], number: int, with_gradient: bool) -> None:
        """Count a pass over this many images or texts."""
        field = f"{kind}_with_gradient" if with_gradient else kind
        setattr(self, field, getattr(self, field) + number)


@dataclass(frozen=True)
class BatchSize:
    """The sizes that the cost of one batch depends on, in addition to a method's options."""

    images: int  # B
    negatives: int = 0  # M
    classes: int = 2  # K
    templates: int = 1  # prompts for each class


class Method(HasOptions, Stateful, ABC):
    """Base class of methods, which predict batch after batch and adapt to each.

    Threads may share an object: calls run one at a time. Options are annotated attributes with defaults; a method
    declares its own, and inherits those of its base classes.

    Args:
        classifier: the classifier to adapt. It is never changed: methods that train work on a copy.
        debias: `Panda(...)`, `Centering(...)` or `Level(...)` to debias the features or logits; None for the plain
            method.
        protocol: `"paper"` to follow the paper, `"reference"` to follow its authors' code where the two differ.
        seed: random seed of the method, its negatives and its views.
    """

    arguments: ClassVar = ("classifier", "debias", "seed")
    memory_options: ClassVar[tuple[str, ...]] = ()
    """Options that limit memory and do not change results, except for rounding."""
    use_of_text: ClassVar[str] = ""
    """What the method does with the text encoder, if it needs one."""

    classifier: Classifier = dataclasses.field(kw_only=False)
    debias: Debias | None = None
    protocol: Protocol = "paper"
    seed: int = 0

    restarts = 0
    """Number of restarts since the last reset, because training diverged."""
    skipped_steps = 0
    """Number of updates skipped since the last reset, because the loss or a gradient was NaN or infinite."""

    def __post_init__(self) -> None:
        check_classifier(self.classifier)
        if self.use_of_text and not isinstance(self.classifier, ZeroShotClassifier):
            raise UnsupportedModelError(
                f"{type(self).__name__} {self.use_of_text}, but {self.classifier.model.name} has no text encoder. "
                "Use a CLIP model, or a method that needs none, such as TPS or Tent."
            )
        self.seed = check_option("seed", self.seed, Seed)
        if self.debias is not None:
            if not isinstance(self.debias, Debias):
                raise InvalidInputError(
                    f"debias must be a Panda, Centering, Level or None, got {self.debias!r}; write "
                    "debias=Panda(beta=0.4)."
                )
            self.debias = self.debias.with_default_sampler(SAMPLER[self.protocol])
        Stateful.__init__(self)
        self.state_device = self.classifier.class_embeddings.device
        self._lock = threading.RLock()
        self.passes = EncoderPasses()
        """Encoder passes since the last reset."""
        self.features: Features
        self.add_state("features", Features(self.classifier, self.debias, self.seed, self._views()))

    def _views(self) -> Views | None:
        """Return the augmented views that the method needs of every image, if any."""
        return None

    @abstractmethod
    def adapt(self, images: Images) -> Tensor:
        """Adapt to a batch of images and return its logits (B, K), float32.

        Args:
            images: (B, 3, H, W), floats in [0, 1] or uint8, or a list of pictures of any sizes: Pillow images, arrays
                (H, W, 3) of uint8, tensors (3, H, W).

        Raises:
            NumericalError: if predictions become NaN or infinite.
        """

    @classmethod
    @abstractmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        """Return the encoder passes for one batch with these options; an upper bound, as filters may skip images."""

    def classify(
        self, encoded: Encoded, class_embeddings: Tensor | None = None, features: Tensor | None = None
    ) -> Tensor:
        """Return debiased logits (B, K) of an encoded batch.

        Args:
            encoded: the batch.
            class_embeddings: (K, D), for methods that adapt them.
            features: (B, D) or (B, V, D), for methods that change the debiased features or use several per image.
        """
        logits = self.classifier.logits(encoded.debiased if features is None else features, class_embeddings)
        if encoded.bias is None:
            return logits
        return logits + (encoded.bias if logits.ndim == 2 else encoded.bias[:, None])

    def _finished(self, logits: Tensor) -> Tensor:
        """Detach and check the logits that `adapt` returns, and count the batch."""
        logits = logits.detach().float()
        self.passes.batches += 1
        if not (math.isfinite(logits.sum()) or logits.isfinite().all()):  # the sum is faster, but may overflow
            raise NumericalError(
                f"Predictions became NaN or infinite in batch {self.passes.batches}: the method diverged. A smaller "
                "learning rate may help, as in lr=1e-4; reset() starts over."
            )
        return logits

    @property
    def name(self) -> str:
        """Name for `create_method`, such as `tent+panda`; an unregistered class has its own name in lower case."""
        base = METHODS.name_of(type(self)) or type(self).__name__.lower()
        return str(MethodName(base, self.debias.name if self.debias else ""))

    @property
    def beta(self) -> float | None:
        """How much of the offset is subtracted: the fixed beta, or the last choice of `"auto"`.

        None before the first choice, and for methods without beta. Set it to a number, or to `"auto"`, which starts
        choosing from scratch. A reset does not undo this.
        """
        beta = None if self.features.debiaser is None else self.features.debiaser.beta
        return None if beta is None else float(beta)

    @beta.setter
    def beta(self, beta: Beta) -> None:
        with self._lock:
            if self.features.debiaser is None:
                raise InvalidInputError(
                    f"This method has no beta to set to {beta!r}: it was created without Panda. Create it with "
                    f"debias=Panda(beta={beta!r})."
                )
            self.features.debiaser.set_beta(beta)
            self.debias = self.features.debiaser.settings

    @property
    def gamma(self) -> float | None:
        """How much of the level was subtracted last; None without a level."""
        gamma = None if self.features.debiaser is None else self.features.debiaser.gamma
        return None if gamma is None else float(gamma)

    @property
    def p_values(self) -> Tensor | None:
        """For each image of the last batch (B,), the share of negatives that resemble the classes at least as much.

        Negatives show no object, so a large share suggests an image of none of the classes. None without negatives.
        """
        return self.features.p_values

    def explain(self) -> str:
        """Describe the bias of the stream, and what was subtracted or why nothing was; empty without `debias`."""
        with self._lock:
            debiaser = self.features.active
            if debiaser is None:
                return ""
            return debiaser.explain(self.classifier.class_names, self.classifier.class_embeddings)

    @property
    def follows_reference(self) -> bool:
        return self.protocol == "reference"

    def reset(self) -> None:
        """Forget the stream: the next batch is treated as the first."""
        with self._lock:
            super().reset()
            self.passes = EncoderPasses()

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the method's state, and a description of the method that can load it."""
        with self._lock:
            return {"made_by": describe(self), "state": super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the `state_dict` of a method, to continue its stream on this method's device.

        Raises:
            InvalidInputError: if the state is of another method, or of one with different options, debiasing, classes
                or model. The message names the differences, and nothing is loaded.
        """
        with self._lock:
            check_state(state, self)
            super().load_state_dict(state["state"])

    def save(self, path: str | Path) -> None:
        """Write the state to a file atomically, for `tta_panda.load_method(path, classifier)`."""
        write_state(path, self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}  # a copy has its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    def __repr__(self) -> str:
        shown = {**self.options, "debias": self.debias, "seed": self.seed}
        options = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({self.classifier!r}, {options})"


def check_classifier(classifier: object) -> None:
    """Raise `InvalidInputError` unless this is a classifier."""
    if not isinstance(classifier, Classifier):
        raise InvalidInputError(
            f"Methods adapt a classifier, got {type(classifier).__name__}. Make one from a model and class names: "
            "tta_panda.make_classifier(model, class_names)."
        )


class FrozenMethod(Method):
    """A method that does not train the image encoder, so that several of them can share one encoded batch."""

    @property
    def class_embeddings(self) -> Tensor:
        """The class embeddings (K, D) before adaptation, which corrections are decided with."""
        return self.classifier.class_embeddings

    def adapt(self, images: Images) -> Tensor:
        with self._lock, isolated(self.classifier.model.device):
            return self.adapt_encoded(self.features.encode(self.features.prepare(images)))

    def adapt_encoded(self, encoded: Encoded) -> Tensor:
        """Adapt to a batch that has been encoded already; its correction is decided here."""
        with self._lock, isolated(self.classifier.model.device), torch.no_grad():
            views = 1 if encoded.views is None or self.features.views is None else encoded.views.shape[1]
            negatives = 0 if self.features.source is None or encoded.negatives is None else len(encoded.negatives)
            self.passes.images += len(encoded.features) * views + negatives
            correction = self.features.decide(encoded, self.class_embeddings)
            return self._finished(self._adapt(encoded.corrected(correction)))

    @abstractmethod
    def _adapt(self, encoded: Encoded) -> Tensor:
        """Return logits (B, K) from embeddings: the method itself. Gradients are disabled unless it enables them."""

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        return EncoderPasses(1, images=batch.images * options.get("views", 1) + batch.negatives)


def adapt_and_predict_plain(method: Method, images: Images) -> tuple[Tensor, Tensor]:
    """Return `method.adapt(images)`, and the logits (B, K) of the classifier without adaptation or debiasing.

    Methods that train the encoder need one more pass for the latter, which is not counted.
    """
    with method._lock, isolated(method.classifier.model.device), torch.no_grad():
        batch = method.features.prepare(images)
        if isinstance(method, FrozenMethod):
            encoded = method.features.encode(batch)
            return method.adapt_encoded(encoded), method.classifier.logits(encoded.features).float()
        features = method.classifier.embed(encode_images(method.classifier.model, batch.images))
        return method.adapt(images), method.classifier.logits(features).float()
