"""Methods that train the encoder: normalisation layers of a copy, an optimiser, and a guard against collapse."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor, nn

from tta_panda.checks import check_range
from tta_panda.errors import UnsupportedModelError
from tta_panda.methods.adaptation import BatchStatistics, NormStatistics, adaptable_copy, has_batch_norm
from tta_panda.methods.base import Method, MethodOptions
from tta_panda.methods.batch import Batch, Encoded
from tta_panda.methods.guard import WITNESSES, add_batch, is_too_far, no_drift
from tta_panda.methods.locking import one_at_a_time
from tta_panda.models.base import Classifier, ImageModel
from tta_panda.panda import Correction, Negatives


class TrainingOptions(MethodOptions, total=False):
    """The arguments of every method that trains the encoder, but for which of its layers."""

    norm_statistics: NormStatistics
    guard: bool
    micro_batch: int | None


class TrainedOptions(TrainingOptions, total=False):
    """The arguments of every method that trains the encoder."""

    skip_last_blocks: int


class TrainedMethod(Method):
    """A method that trains normalisation layers, on a copy of the model.

    Parameters and optimiser belong to the state like anything declared. A loss or a gradient that is NaN or infinite
    never reaches the parameters: the step is left out and counted.

    Args:
        lr: learning rate of the optimiser, Adam unless a method overrides `make_optimizer`.
        skip_last_blocks: the layers of this many last blocks of the image encoder, and all after them, do not adapt.
        norm_statistics: what BatchNorm layers normalise with: mean and variance of the `"batch"`, as in the
            publications of Tent and its successors, or the `"running"` ones of the model. Negatives are normalised like
            the images of their batch and do not count, and a single image takes the running ones. Other layers have no
            such statistics.
        guard: start over, and predict anew, where predictions have drifted too far from those of the unadapted model,
            which then predicts the first of every four images of a batch, too. It prevents collapse in most cases,
            and can also undo adaptation that helps.
        micro_batch: encode at most this many images at a time, and again in the backward pass, so that activations of
            so many are in memory. Results are the same, but for rounding, and a step takes a third longer; None for all
            at once.
        common: the arguments of every method.
    """

    adapts_text: ClassVar[bool] = False
    """Whether the text encoder's layers are trained, too."""

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 1e-3,
        skip_last_blocks: int = 0,
        norm_statistics: NormStatistics = "batch",
        guard: bool = False,
        micro_batch: int | None = None,
        **common: Unpack[MethodOptions],
    ):
        super().__init__(classifier, **common)
        check_range("lr", lr, 0)
        check_range("skip_last_blocks", skip_last_blocks, 0)
        self.lr = lr
        self.model: ImageModel
        self.model, self.adapted = adaptable_copy(
            classifier.model, text=self.adapts_text, skip_last_blocks=skip_last_blocks
        )
        self.uses_batch_statistics = norm_statistics == "batch" and has_batch_norm(self.model.image_encoder)
        if micro_batch is not None:
            check_range("micro_batch", micro_batch, 1)
            if self.uses_batch_statistics:
                raise UnsupportedModelError(
                    f"micro_batch={micro_batch} cannot be used here: {classifier.model.name} normalises with the mean "
                    "and variance of whole batches. Add norm_statistics=running."
                )
        self.features.micro_batch = micro_batch
        with torch.inference_mode(False):
            self._initial = {name: parameter.detach().clone() for name, parameter in self.adapted.items()}
        self._optimizer: torch.optim.Optimizer | None = None
        self.guard = guard
        self.drift: Tensor
        self.add_state("drift", no_drift(len(classifier.class_names)))
        self.add_state("restarts", 0)
        self.add_state("skipped_steps", 0)

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
        with self._normalising_by(len(batch.images)):
            return self.features.encode(batch, self.model, class_embeddings)

    def embed(self, images: Tensor, negatives: Negatives | None = None) -> Encoded:
        """Embeddings of prepared images by the model as it is now, with the offset if they end with the negatives."""
        with self._normalising_by(len(images) - (0 if negatives is None else len(negatives.images))):
            return self.features.embed(images, self.model, negatives)

    def _normalising_by(self, images: int) -> AbstractContextManager[object]:
        """A pass of so many images; a single one has no statistics of a batch, so it takes the running ones."""
        return BatchStatistics(images) if self.uses_batch_statistics and images > 1 else nullcontext()

    def logits(self, batch: Batch) -> Tensor:
        """Logits (B, K) by the model as it is now."""
        return self.classify(self.encode(batch))

    def step(self, loss: Tensor) -> None:
        """One update of the adapted parameters."""
        self.optimizer.zero_grad()
        loss.backward()
        self.follow_gradients(loss)

    def follow_gradients(self, loss: Tensor) -> bool:
        """One update with the gradients that are there, unless the loss or any of these is NaN or infinite."""
        can_step = self.can_follow(loss)
        if can_step:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return can_step

    def can_follow(self, loss: Tensor) -> bool:
        """Whether the loss and all gradients are numbers; where they are not, the step is left out, and counted."""
        gradients = [p.grad for p in self.adapted.values() if p.grad is not None]
        values = torch.stack([value.isfinite().all() for value in (loss, *gradients)])  # so that a GPU waits once
        is_finite = bool(values.all())
        self.skipped_steps += not is_finite
        return is_finite

    def _adapt_batch(self, batch: Batch) -> Tensor:
        logits = self._adapt(batch)
        if self.guard:
            witnesses = torch.arange(0, len(logits), WITNESSES)
            unadapted = self._unadapted_logits(batch, witnesses)
            self.drift = add_batch(self.drift, logits.detach()[witnesses], unadapted, len(logits))
            if is_too_far(self.drift):
                self.restart()
                return self._adapt(batch)
        return logits

    @torch.no_grad()
    def _unadapted_logits(self, batch: Batch, witnesses: Tensor) -> Tensor:
        """What the model of the beginning predicts for some images of a batch that has been encoded."""
        if not self.uses_batch_statistics:  # with these, predictions depend on the whole batch
            batch, witnesses = batch.select(witnesses), torch.arange(len(witnesses))
        adapted = {name: parameter.clone() for name, parameter in self.adapted.items()}
        self._load_parameters(self._initial)
        encoded = self.embed(batch.everything, batch.negatives)
        self._load_parameters(adapted)
        return self.classify(encoded._replace(correction=batch.correction or Correction()))[witnesses]

    def restore(self) -> None:
        """Undo all training: the weights of the beginning, and an optimiser that has seen nothing."""
        self._load_parameters(self._initial)
        self._optimizer = None

    def restart(self) -> None:
        """Begin again where training has gone astray: weights and all that the method remembers. It is counted."""
        self.restore()
        for name in self._defaults.keys() - {"restarts", "skipped_steps"}:
            self.reset_state(name)
        self.restarts += 1

    @one_at_a_time
    def reset(self) -> None:
        super().reset()
        self.restore()

    @one_at_a_time
    def state_dict(self) -> dict[str, Any]:
        parameters = {name: parameter.detach().clone() for name, parameter in self.adapted.items()}
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        return {**super().state_dict(), "parameters": parameters, "optimizer": optimizer}

    @one_at_a_time
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
