"""What all methods share: the interface, and state that is declared once and reset, saved and loaded here only."""

from __future__ import annotations

import copy
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

import torch
from torch import Tensor

from tta_panda.errors import InvalidInputError, NumericalError
from tta_panda.methods.batch import Batch, Encoded
from tta_panda.methods.features import Features, undisturbed
from tta_panda.methods.locking import one_at_a_time
from tta_panda.methods.passes import EncoderPasses
from tta_panda.methods.signatures import HasOptions
from tta_panda.methods.state import check_state, describe, on_device, write_state
from tta_panda.models.base import Classifier, framing_of
from tta_panda.models.prepare import Images, as_batch
from tta_panda.panda import Beta, Debias
from tta_panda.panda.negatives import SamplerName

Protocol = Literal["paper", "reference"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

SAMPLER: dict[str, SamplerName] = {"paper": "pool", "reference": "same_cell"}
"""How each protocol draws negatives, unless Panda says otherwise."""


class MethodOptions(TypedDict, total=False):
    """The arguments of every method, which constructors hand on as `**common`."""

    debias: Debias | None
    protocol: Protocol
    seed: int


class Method(HasOptions, ABC):
    """Predicts batch after batch, and adapts to what it sees. Threads may share an object: one works at a time.

    Args:
        classifier: the classifier to adapt. It is never changed: methods that train work on a copy.
        debias: `Panda(...)`, `Centering(...)` or `Level(...)` to debias what the method works with; None for the plain
            method.
        protocol: `"paper"` for what the paper says, `"reference"` for what its authors' code does where it differs.
        seed: random seed of the method, its negatives and its views.
    """

    restarts = 0
    """How often weights that had gone astray were given up for earlier ones since the last reset."""
    skipped_steps = 0
    """Updates since the last reset that were left out, because the loss or a gradient was NaN or infinite."""

    def __init__(
        self, classifier: Classifier, *, debias: Debias | None = None, protocol: Protocol = "paper", seed: int = 0
    ):
        check_classifier(classifier)
        if debias is not None and not isinstance(debias, Debias):
            raise InvalidInputError(
                f"debias must be a Panda, Centering, Level or None, got {debias!r}; write debias=Panda(beta=0.4)."
            )
        self._lock = threading.RLock()
        self.classifier = classifier
        self.protocol = protocol
        self.features = Features(classifier, debias and debias.with_default_sampler(SAMPLER[protocol]), seed)
        self._defaults: dict[str, Any] = {}

    @property
    def debias(self) -> Debias | None:
        """How what the method works with is debiased, if at all."""
        return None if self.features.debiaser is None else self.features.debiaser.settings

    @property
    def beta(self) -> float | None:
        """How much of the offset is subtracted, which is the fixed beta or what `"auto"` chose last.

        None before the first choice, and where nothing has a beta. Set it to a number or to `"auto"`, which starts to
        choose afresh; a reset does not take it back.
        """
        return None if self.features.debiaser is None else self.features.debiaser.beta

    @beta.setter
    def beta(self, beta: Beta) -> None:
        if self.features.debiaser is None:
            raise InvalidInputError(
                f"This method has no beta to set to {beta!r}: it was made without Panda. Make it with "
                f"debias=Panda(beta={beta!r})."
            )
        self.features.debiaser.set_beta(beta)

    @property
    def gamma(self) -> float | None:
        """How much of the level was subtracted last; None where no level is."""
        return None if self.features.debiaser is None else self.features.debiaser.gamma

    @property
    def follows_reference(self) -> bool:
        return self.protocol == "reference"

    @property
    def passes(self) -> EncoderPasses:
        """What was encoded since the last reset."""
        return self.features.passes

    def classify(self, encoded: Encoded, class_embeddings: Tensor | None = None) -> Tensor:
        """Debiased logits (B, K) of an encoded batch; methods that adapt the class embeddings pass theirs (K, D)."""
        return self.classifier.logits(encoded.debiased, class_embeddings) + encoded.bias

    def add_state(self, name: str, default: Any) -> None:
        """Declare `self.<name>`: state that starts as `default`, is reset to it, and is part of `state_dict`."""
        self._defaults[name] = default
        self.reset_state(name)

    def adapt(self, images: Images) -> Tensor:
        """Logits (B, K), float32, for a batch of images; adapts to them.

        Args:
            images: (B, 3, H, W), floats in [0, 1] or uint8, or a list of pictures of any sizes: Pillow images, arrays
                (H, W, 3) of uint8, tensors (3, H, W).

        Raises:
            NumericalError: where predictions become NaN or infinite.
        """
        return self._run(lambda: self._adapt_batch(self._prepare(images)))

    @one_at_a_time
    def adapt_beside_plain(self, images: Images) -> tuple[Tensor, Tensor]:
        """`adapt`, and the logits (B, K) that the classifier gives without any adaptation or debiasing.

        Methods that train the encoder need one more pass for these, which is not counted.
        """
        batch = self._prepare(images)
        logits = self._run(lambda: self._adapt_batch(batch))
        with torch.no_grad(), undisturbed(self.classifier.model.device):
            features = self.classifier.embed(self.classifier.model.encode_image(batch.images))
            return logits, self.classifier.logits(features).float()

    def _prepare(self, images: Images) -> Batch:
        return self.features.prepare(as_batch(images, framing_of(self.classifier.model)))

    def _adapt_batch(self, batch: Batch) -> Tensor:
        """`_adapt`, for classes that look after what it does."""
        return self._adapt(batch)

    @one_at_a_time
    def _run(self, compute: Callable[[], Tensor]) -> Tensor:
        with undisturbed(self.classifier.model.device):
            logits = compute().detach().float()
        self.passes.batches += 1
        if not (math.isfinite(logits.sum()) or logits.isfinite().all()):  # the sum is faster, but may overflow
            raise NumericalError(
                f"Predictions became NaN or infinite in batch {self.passes.batches}: the method diverged. A smaller "
                "learning rate may help, as in lr=1e-4; reset() starts afresh."
            )
        return logits

    @abstractmethod
    def _adapt(self, batch: Batch) -> Tensor:
        """The method itself: free to use gradients, returns logits (B, K)."""

    @one_at_a_time
    def reset(self) -> None:
        """Forget the stream: the next batch is treated as the first."""
        for name in self._defaults:
            self.reset_state(name)
        self.features.reset()

    def reset_state(self, name: str) -> None:
        """Set one declared state back to its default."""
        setattr(self, name, _fresh(self._defaults[name]))

    @one_at_a_time
    def state_dict(self) -> dict[str, Any]:
        """Everything that the stream has changed, as a copy, and what a method must be to go on from it."""
        state = {name: getattr(self, name) for name in self._defaults}
        return copy.deepcopy({"made_by": describe(self), "state": state, "features": self.features.state_dict()})

    @one_at_a_time
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the method that gave this `state_dict` stood, on this method's device.

        Raises:
            InvalidInputError: if that was another method, or one with other options, another Panda, other classes or
                another model. The message says what differs, and nothing is loaded.
        """
        check_state(state, self)
        device = self.classifier.class_embeddings.device
        for name, value in state["state"].items():
            setattr(self, name, on_device(value, device))
        self.features.load_state_dict(state["features"])

    def save(self, path: str | Path) -> None:
        """Write the state to a file, whole or not at all; `tta_panda.load_method(path, classifier)` goes on from it."""
        write_state(path, self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}  # a copy has its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    def __repr__(self) -> str:
        shown = {**self.options, "debias": self.debias, "seed": self.features.seed}
        options = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({self.classifier!r}, {options})"


def check_classifier(classifier: object) -> None:
    """Refuse anything else, such as the model itself."""
    if not isinstance(classifier, Classifier):
        raise InvalidInputError(
            f"Methods adapt a classifier, got {type(classifier).__name__}. Make one of a model and class names: "
            "tta_panda.make_classifier(model, class_names)."
        )


def _fresh(default: Any) -> Any:
    """A copy that may change, even where the default was made in inference mode."""
    if isinstance(default, dict):  # much faster than a deep copy, which takes tensors by way of their storages
        return {name: _fresh(value) for name, value in default.items()}
    with torch.inference_mode(False):
        return default.clone() if isinstance(default, Tensor) else copy.deepcopy(default)


class FrozenMethod(Method):
    """A method that leaves the image encoder alone, so that several of them can share one encoded batch."""

    @property
    def class_embeddings(self) -> Tensor:
        """What features are first compared with (K, D), also to decide corrections."""
        return self.classifier.class_embeddings

    def _adapt(self, batch: Batch) -> Tensor:
        return self._adapt_counted(self.features.encode_frozen(batch))

    @one_at_a_time
    def adapt_beside_plain(self, images: Images) -> tuple[Tensor, Tensor]:
        with undisturbed(self.classifier.model.device):
            encoded = self.features.encode_frozen(self._prepare(images))
            plain = self.classifier.logits(encoded.features).float()
        return self.adapt_encoded(encoded), plain

    def adapt_encoded(self, encoded: Encoded) -> Tensor:
        """`adapt` for a batch that has been encoded already; its correction is decided here."""
        return self._run(lambda: self._adapt_counted(encoded))

    def _adapt_counted(self, encoded: Encoded) -> Tensor:
        self.features.count_frozen(encoded)
        return self._adapt_encoded(self.features.corrected(encoded, self.class_embeddings))

    @abstractmethod
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        """Logits (B, K) from embeddings."""
