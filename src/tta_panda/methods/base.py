"""What all methods share: the interface, and state that is declared once and reset, saved and loaded here only."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, UnknownNameError
from tta_panda.methods.adaptation import adaptable_copy
from tta_panda.methods.features import Features, Views
from tta_panda.methods.passes import EncoderPasses
from tta_panda.models.base import Classifier, ImageModel
from tta_panda.panda import Batch, Encoded, Panda

Protocol = Literal["paper", "reference"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


class Common(TypedDict, total=False):
    """The arguments of every method, as its constructor hands them on."""

    debias: Panda | None
    protocol: Protocol
    seed: int


class Method(ABC):
    """Predicts batch after batch, and adapts to what it sees.

    Args:
        classifier: the classifier to adapt. It is never changed: methods that train work on a copy.
        debias: `Panda(...)` to debias the features that the method works with; None for the plain method.
        protocol: `"paper"` for what the paper says, `"reference"` for what its authors' code does where it differs.
        seed: of everything random in the method, negatives included.
        views: which augmented views of the images the method works with, if any.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
        views: Views | None = None,
    ):
        if protocol not in PROTOCOLS:
            raise UnknownNameError("protocol", protocol, PROTOCOLS)
        self.classifier = classifier
        self.protocol = protocol
        self.features = Features(classifier, debias, seed, views)
        self._defaults: dict[str, Any] = {}

    @property
    def follows_reference(self) -> bool:
        return self.protocol == "reference"

    @property
    def passes(self) -> EncoderPasses:
        """What was encoded since the last reset."""
        return self.features.passes

    def add_state(self, name: str, default: Any) -> None:
        """Declare `self.<name>`: state that starts as `default`, is reset to it, and is part of `state_dict`."""
        self._defaults[name] = default
        setattr(self, name, _fresh(default))

    def adapt(self, images: Tensor) -> Tensor:
        """Logits (B, K), float32, for a batch of images (B, 3, H, W), floats in [0, 1] or uint8; adapts on the way."""
        # A caller in inference mode must not keep a method from training.
        with torch.inference_mode(False):
            if isinstance(images, Tensor) and images.is_inference():
                images = images.clone()
            logits = self._adapt(images).detach().float()
        self.passes.batches += 1
        return logits

    @abstractmethod
    def _adapt(self, images: Tensor) -> Tensor:
        """The method itself: checked by the model's `prepare`, free to use gradients, returns logits (B, K)."""

    def reset(self) -> None:
        """Forget the stream: the next batch is treated as the first."""
        for name, default in self._defaults.items():
            setattr(self, name, _fresh(default))
        self.features.reset()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the stream has changed, as a copy."""
        state = {name: copy.deepcopy(getattr(self, name)) for name in self._defaults}
        return {"state": state, "features": copy.deepcopy(self.features.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the method that gave this `state_dict` stood."""
        own = self.state_dict()
        if {key: _keys(value) for key, value in state.items()} != {key: _keys(value) for key, value in own.items()}:
            raise InvalidInputError(
                f"This state belongs to another method, or one with another debias, than this {type(self).__name__}: "
                f"it holds {', '.join(sorted(state))}."
            )
        for name, value in state["state"].items():
            setattr(self, name, copy.deepcopy(value))
        self.features.load_state_dict(state["features"])


def _fresh(default: Any) -> Any:
    """A copy that may change, even where the default was made in inference mode."""
    with torch.inference_mode(False):
        return default.clone() if isinstance(default, Tensor) else copy.deepcopy(default)


def _keys(value: Any) -> Any:
    return sorted(value) if isinstance(value, dict) else None


class FrozenMethod(Method):
    """A method that leaves the image encoder alone, so that several of them can share one encoded batch."""

    def _adapt(self, images: Tensor) -> Tensor:
        return self._adapt_counted(self.features.encode_frozen(images))

    def adapt_encoded(self, encoded: Encoded) -> Tensor:
        """`adapt` for a batch that has been encoded already."""
        with torch.inference_mode(False):
            logits = self._adapt_counted(encoded).detach().float()
        self.passes.batches += 1
        return logits

    def _adapt_counted(self, encoded: Encoded) -> Tensor:
        self.features.count_frozen(encoded)
        return self._adapt_encoded(encoded)

    @abstractmethod
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        """Logits (B, K) from embeddings."""


class TrainedMethod(Method):
    """A method that trains normalisation layers, on a copy of the model.

    Sub-classes say with which optimiser; parameters and optimiser belong to the state like anything declared.

    Args:
        text: train the text encoder's layers, too.
        skip_last_blocks: leave out the layers of so many last blocks of the image encoder, and all after them.
        more: the arguments of every method.
    """

    def __init__(
        self, classifier: Classifier, *, text: bool = False, skip_last_blocks: int = 0, **more: Unpack[Common]
    ):
        super().__init__(classifier, **more)
        self.model: ImageModel
        self.model, self.adapted = adaptable_copy(classifier.model, text=text, skip_last_blocks=skip_last_blocks)
        with torch.inference_mode(False):
            self._initial = {name: parameter.detach().clone() for name, parameter in self.adapted.items()}
        self._optimizer: torch.optim.Optimizer | None = None

    @abstractmethod
    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimiser for the adapted parameters."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        if self._optimizer is None:
            self._optimizer = self.make_optimizer(list(self.adapted.values()))
        return self._optimizer

    def encode(self, batch: Batch) -> Encoded:
        """Features by the model as it is now."""
        return self.features.encode(batch, self.model)

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, K) by the model as it is now."""
        return self.classifier.logits(self.features.debias(self.encode(batch)))

    def step(self, loss: Tensor) -> None:
        """One update of the adapted parameters."""
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def restore(self) -> None:
        """Undo all training: the weights of the beginning, and an optimiser that has seen nothing."""
        self._load_parameters(self._initial)
        self._optimizer = None

    def reset(self) -> None:
        super().reset()
        self.restore()

    def state_dict(self) -> dict[str, Any]:
        parameters = {name: parameter.detach().clone() for name, parameter in self.adapted.items()}
        return {
            **super().state_dict(),
            "parameters": parameters,
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._load_parameters(state["parameters"])
        self._optimizer = None
        self.optimizer.load_state_dict(state["optimizer"])

    def _load_parameters(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.adapted.items():
                parameter.copy_(values[name])
                parameter.grad = None
