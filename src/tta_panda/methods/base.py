"""What all methods share: the interface, and state that is declared once and reset, saved and loaded here only."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn

from tta_panda.checks import check_range
from tta_panda.errors import InvalidInputError
from tta_panda.methods.adaptation import adaptable_copy
from tta_panda.methods.batch import Batch, Encoded
from tta_panda.methods.features import Features, undisturbed
from tta_panda.methods.passes import EncoderPasses
from tta_panda.methods.signatures import HasOptions
from tta_panda.methods.state import check_state, describe, on_device
from tta_panda.models.base import Classifier, ImageModel
from tta_panda.panda import Beta, Panda
from tta_panda.panda.negatives import SamplerName

Protocol = Literal["paper", "reference"]
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)

SAMPLER: dict[str, SamplerName] = {"paper": "pool", "reference": "same_cell"}
"""How each protocol draws negatives, unless Panda says otherwise."""


class MethodOptions(TypedDict, total=False):
    """The arguments of every method, which constructors hand on as `**common`."""

    debias: Panda | None
    protocol: Protocol
    seed: int


class Method(HasOptions, ABC):
    """Predicts batch after batch, and adapts to what it sees.

    Args:
        classifier: the classifier to adapt. It is never changed: methods that train work on a copy.
        debias: `Panda(...)` to debias the features that the method works with; None for the plain method.
        protocol: `"paper"` for what the paper says, `"reference"` for what its authors' code does where it differs.
        seed: random seed of the method, its negatives and its views.
    """

    def __init__(
        self, classifier: Classifier, *, debias: Panda | None = None, protocol: Protocol = "paper", seed: int = 0
    ):
        check_classifier(classifier)
        if debias is not None and not isinstance(debias, Panda):
            raise InvalidInputError(f"debias must be a Panda or None, got {debias!r}; write debias=Panda(beta=0.4).")
        if debias is not None and debias.sampler is None:
            debias = dataclasses.replace(debias, sampler=SAMPLER[protocol])
        self.classifier = classifier
        self.protocol = protocol
        self.features = Features(classifier, debias, seed)
        self._defaults: dict[str, Any] = {}

    @property
    def debias(self) -> Panda | None:
        """What is subtracted, if anything."""
        return None if self.features.debiaser is None else self.features.debiaser.panda

    @property
    def beta(self) -> float | None:
        """Panda's beta: the fixed one, or what `"auto"` chose last. None without Panda, and before the first choice.

        Set it to a number or to `"auto"`, which starts to choose afresh; a reset does not take it back.
        """
        return None if self.features.debiaser is None else self.features.debiaser.beta

    @beta.setter
    def beta(self, beta: Beta) -> None:
        if self.features.debiaser is None:
            raise InvalidInputError(
                f"This method has no beta to set to {beta!r}: it was made without Panda. Make it with "
                f"debias=Panda(beta={beta!r})."
            )
        self.features.debiaser.beta = beta

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
        """Logits (B, K), float32, for a batch of images (B, 3, H, W), floats in [0, 1] or uint8; adapts to them."""
        return self._run(lambda: self._adapt(self.features.prepare(images)))

    def _run(self, compute: Callable[[], Tensor]) -> Tensor:
        with undisturbed(self.classifier.model.device):
            logits = compute().detach().float()
        self.passes.batches += 1
        return logits

    @abstractmethod
    def _adapt(self, batch: Batch) -> Tensor:
        """The method itself: free to use gradients, returns logits (B, K)."""

    def reset(self) -> None:
        """Forget the stream: the next batch is treated as the first."""
        for name, default in self._defaults.items():
            setattr(self, name, _fresh(default))
        self.features.reset()

    def state_dict(self) -> dict[str, Any]:
        """Everything that the stream has changed, as a copy, and what a method must be to go on from it."""
        state = {name: getattr(self, name) for name in self._defaults}
        return copy.deepcopy({"made_by": describe(self), "state": state, "features": self.features.state_dict()})

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

    def __repr__(self) -> str:
        shown = {**self.options, "debias": self.debias, "seed": self.features.seed}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


def check_classifier(classifier: object) -> None:
    """Refuse anything else, such as the model itself."""
    if not isinstance(classifier, Classifier):
        raise InvalidInputError(
            f"Methods adapt a classifier, got {type(classifier).__name__}. Make one of a model and class names: "
            "tta_panda.make_classifier(model, class_names)."
        )


def _fresh(default: Any) -> Any:
    """A copy that may change, even where the default was made in inference mode."""
    with torch.inference_mode(False):
        return default.clone() if isinstance(default, Tensor) else copy.deepcopy(default)


class FrozenMethod(Method):
    """A method that leaves the image encoder alone, so that several of them can share one encoded batch."""

    @property
    def class_embeddings(self) -> Tensor:
        """What features are first compared with (K, D), also to choose beta."""
        return self.classifier.class_embeddings

    def _adapt(self, batch: Batch) -> Tensor:
        return self._adapt_counted(self.features.encode_frozen(batch))

    def adapt_encoded(self, encoded: Encoded) -> Tensor:
        """`adapt` for a batch that has been encoded already; its beta is chosen here."""
        return self._run(lambda: self._adapt_counted(encoded))

    def _adapt_counted(self, encoded: Encoded) -> Tensor:
        self.features.count_frozen(encoded)
        return self._adapt_encoded(self.features.with_beta(encoded, self.class_embeddings))

    @abstractmethod
    def _adapt_encoded(self, encoded: Encoded) -> Tensor:
        """Logits (B, K) from embeddings."""


class TrainedOptions(MethodOptions, total=False):
    """The arguments of every method that trains the encoder."""

    skip_last_blocks: int


class TrainedMethod(Method):
    """A method that trains normalisation layers, on a copy of the model.

    Parameters and optimiser belong to the state like anything declared.

    Args:
        lr: learning rate of the optimiser, Adam unless a method overrides `make_optimizer`.
        skip_last_blocks: the layers of this many last blocks of the image encoder, and all after them, do not adapt.
        common: the arguments of every method.
    """

    adapts_text: ClassVar[bool] = False
    """Whether the text encoder's layers are trained, too."""

    def __init__(
        self, classifier: Classifier, *, lr: float = 1e-3, skip_last_blocks: int = 0, **common: Unpack[MethodOptions]
    ):
        super().__init__(classifier, **common)
        check_range("lr", lr, 0)
        check_range("skip_last_blocks", skip_last_blocks, 0)
        self.lr = lr
        self.model: ImageModel
        self.model, self.adapted = adaptable_copy(
            classifier.model, text=self.adapts_text, skip_last_blocks=skip_last_blocks
        )
        with torch.inference_mode(False):
            self._initial = {name: parameter.detach().clone() for name, parameter in self.adapted.items()}
        self._optimizer: torch.optim.Optimizer | None = None

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimiser for the adapted parameters."""
        return torch.optim.Adam(parameters, lr=self.lr)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        if self._optimizer is None:
            self._optimizer = self.make_optimizer(list(self.adapted.values()))
        return self._optimizer

    def encode(self, batch: Batch, class_embeddings: Tensor | None = None) -> Encoded:
        """Features by the model as it is now."""
        return self.features.encode(batch, self.model, class_embeddings)

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, K) by the model as it is now."""
        return self.classifier.logits(self.encode(batch).debiased)

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
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        return {**super().state_dict(), "parameters": parameters, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._load_parameters(state["parameters"])
        self._optimizer = None
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))

    def _load_parameters(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.adapted.items():
                parameter.copy_(values[name])
                parameter.grad = None
