"""Base class of methods that train normalisation layers, with their optimiser and a guard against collapse."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError, UnsupportedModelError
from tta_panda.methods.adaptation import BatchStatistics, adaptable_copy, find_blocks, has_batch_norm
from tta_panda.methods.base import BatchSize, EncoderPasses, Method
from tta_panda.methods.features import Batch, Encoded, encode_images, isolated
from tta_panda.methods.image_cache import Entries, empty_cache
from tta_panda.models.prepare import Images
from tta_panda.options import Count, NonNegative, NonNegativeInt
from tta_panda.panda import Correction, Negatives
from tta_panda.state import Stateful
from tta_panda.transfers import to_host

PROBE_STEP = 4
"""The guard compares predictions with those of the unadapted model on one of this many images."""

DRIFT_HALF_LIFE = 50
"""Half-life of the drift, in images: after this many, an earlier image counts half as much."""

MAX_DRIFT = 0.15
"""Maximum L1 distance of mean predictions, which is between 0 and 2. Chosen on `glyphs-val-c`."""


class AdaptedWeights(Stateful):
    """Trainable parameters by name, and their optimiser. A reset restores the initial values of the parameters."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ):
        super().__init__()
        self.parameters = parameters
        self.make_optimizer = make_optimizer
        with torch.inference_mode(False):
            self.initial = self.copy()
        self.reset()

    def reset(self) -> None:
        self.load(self.initial)
        self.optimizer = self.make_optimizer(list(self.parameters.values()))

    def copy(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    def load(self, values: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(values[name])
                parameter.grad = None

    @contextlib.contextmanager
    def replaced(self, values: Mapping[str, Tensor]) -> Iterator[None]:
        """Use other values for the parameters within a block, without gradients."""
        own = self.copy()
        self.load(values)
        try:
            with torch.no_grad():
                yield
        finally:
            self.load(own)

    def state_dict(self) -> dict[str, Any]:
        moments = {name: self.optimizer.state.get(parameter) for name, parameter in self.parameters.items()}
        kept = {name: copy.deepcopy(values) for name, values in moments.items() if values}
        return {"parameters": self.copy(), "optimizer": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reset()
        self.load(state["parameters"])
        moments = {place: state["optimizer"].get(name) for place, name in enumerate(self.parameters)}
        kept = {place: copy.deepcopy(values) for place, values in moments.items() if values}
        groups = self.optimizer.state_dict()["param_groups"]  # keep the method's own settings
        self.optimizer.load_state_dict({"state": kept, "param_groups": groups})

    def check_state_dict(self, state: Any) -> None:
        found = _shapes(state)
        moments = found.get("optimizer") if isinstance(found, dict) else None
        kept = {name: shapes for name, shapes in _shapes(self._first_moments()).items() if name in (moments or {})}
        if found != {"parameters": _shapes(self.initial), "optimizer": kept}:
            raise InvalidInputError("The weights or moments of the state do not match the adapted parameters.")

    def _first_moments(self) -> dict[str, Any]:
        """Return the optimiser's state of each parameter after one step."""
        copies = {name: nn.Parameter(value.clone()) for name, value in self.initial.items()}
        for parameter in copies.values():
            parameter.grad = torch.zeros_like(parameter)
        optimizer = self.make_optimizer(list(copies.values()))
        optimizer.step()
        return {name: optimizer.state[parameter] for name, parameter in copies.items()}


@torch.no_grad()
def lerp(start: Mapping[str, Tensor], end: Mapping[str, Tensor], weight: float) -> dict[str, Tensor]:
    """Interpolate linearly between weights by name."""
    return {name: start[name].lerp(end[name], weight) for name in start}


def _shapes(value: Any) -> Any:
    """Replace tensors in nested dictionaries by their shapes."""
    if isinstance(value, dict):
        return {name: _shapes(each) for name, each in value.items()}
    return value.shape if isinstance(value, Tensor) else None


class TrainedMethod(Method):
    """Base class of methods that train normalisation layers, on a copy of the model.

    Parameters and optimiser are part of the state. If the loss or a gradient is NaN or infinite, the step is skipped
    and counted.

    Args:
        lr: learning rate of the optimiser, Adam unless a method overrides `make_optimizer`.
        skip_last_blocks: the layers in this many last blocks of the image encoder, and all layers after them, do not
            adapt; None for a quarter of the blocks.
        norm_statistics: statistics that BatchNorm layers normalise with: mean and variance of the `"batch"`, as in the
            papers of Tent and its successors, or the `"running"` statistics of the model; None for the protocol's
            choice: batch in the paper, running in the authors' code. Negatives are normalised with the statistics of
            the images in their batch, and a single image with the running statistics. Models without BatchNorm ignore
            this.
        guard: reset and predict again if predictions have drifted too far from those of the unadapted model, which
            then also predicts one of every four images of a batch. It prevents collapse in most cases, but can also
            undo adaptation that helps.
        micro_batch: encode at most this many images at a time, and again in the backward pass, so that only their
            activations are in memory. Results are equal except for rounding, and a step takes a third longer; None
            for all images at once.
    """

    memory_options = ("micro_batch",)
    adapts_text: ClassVar[bool] = False
    """Whether the normalisation layers of the text encoder are trained, too."""
    gradient_passes: ClassVar[int] = 1
    """Number of passes over a batch with gradient."""
    extra_passes: ClassVar[int] = 0
    """Number of passes over a batch without gradient."""

    lr: NonNegative = 1e-3
    skip_last_blocks: NonNegativeInt | None = 0
    norm_statistics: Literal["batch", "running"] | None = None
    guard: bool = False
    micro_batch: Count | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.classifier.model
        skipped = self.skip_last_blocks
        if skipped is None:
            skipped = find_blocks(model.image_encoder)[1] // 4
        self.model, self.adapted = adaptable_copy(model, text=self.adapts_text, skip_last_blocks=skipped)
        statistics = self.norm_statistics or ("running" if self.follows_reference else "batch")
        self.uses_batch_statistics = statistics == "batch" and has_batch_norm(model.image_encoder)
        if self.micro_batch is not None and self.uses_batch_statistics:
            raise UnsupportedModelError(
                f"micro_batch={self.micro_batch} cannot be used here: {model.name} normalises with the mean and "
                "variance of whole batches. Add norm_statistics=running."
            )
        self.weights: AdaptedWeights
        self.add_state("weights", AdaptedWeights(self.adapted, self.make_optimizer))
        self.drift: Tensor  # (K + 1,): sums over images of the change in probability, and the number of images
        self.add_state("drift", self.classifier.class_embeddings.new_zeros(len(self.classifier.class_names) + 1))
        self.add_state("restarts", 0)
        self.add_state("skipped_steps", 0)

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimiser for the adapted parameters."""
        return torch.optim.Adam(parameters, lr=self.lr)

    def adapt(self, images: Images) -> Tensor:
        with self._lock, isolated(self.classifier.model.device), torch.enable_grad():
            batch = self.features.prepare(images)
            logits = self._adapt(batch)
            if self.guard and self._has_drifted(batch, logits.detach()):
                self.restart()
                logits = self._adapt(dataclasses.replace(batch, negatives=None, correction=None))
            return self._finished(logits)

    @abstractmethod
    def _adapt(self, batch: Batch) -> Tensor:
        """Return logits (B, K) of a batch: the method itself, with gradients enabled."""

    def encode(self, batch: Batch, class_embeddings: Tensor | None = None) -> Encoded:
        """Encode a batch with the current weights, in one pass over B+M images, and debias its features.

        The first pass over a batch draws its negatives and decides its correction. Methods that adapt the class
        embeddings pass theirs (K, D).
        """
        if self.debias is None:
            return self.embed(batch.images)
        if batch.negatives is None:
            batch.negatives = self.features.draw(batch.images)
        encoded = self.embed(batch.with_negatives, batch.negatives)._replace(images=batch.originals)
        if batch.correction is None:
            batch.correction = self.features.decide(encoded, class_embeddings)
        return encoded.corrected(batch.correction)

    def embed(self, images: Tensor, negatives: Negatives | None = None) -> Encoded:
        """Encode prepared images with the current weights; if the last ones are negatives, compute the offset."""
        own = len(images) - (0 if negatives is None else len(negatives.images))
        if self.uses_batch_statistics and own > 1:  # a single image has no batch statistics
            with BatchStatistics(own):
                raw = self.model.encode_image(images)
        elif self.micro_batch:
            raw = in_chunks(lambda piece: self.model.encode_image(images[piece]), len(images), self.micro_batch)
        else:
            raw = encode_images(self.model, images)
        self.passes.count("images", len(images), raw.requires_grad)
        return self.features.split(raw, negatives)

    def encode_like(self, encoded: Encoded, images: Tensor) -> Encoded:
        """Encode other versions of a batch's images with the current weights; they keep the correction of the batch."""
        return encoded._replace(features=self.embed(images).features)

    def no_images(self) -> Entries:
        """Return an image memory without entries, to declare as a state."""
        model, texts = self.classifier.model, self.classifier.class_embeddings
        sides = (model.image_size, model.image_size)
        images = torch.empty(0, 3, *sides, dtype=torch.uint8, device=texts.device)
        entries = {**empty_cache(texts), "images": images, "biases": texts.new_empty(0, len(texts))}
        return {"shifts" if name == "features" else name: rows for name, rows in entries.items()}

    def to_memory(self, batch: Batch, encoded: Encoded, logits: Tensor, entropies: Tensor) -> Entries:
        """Return the images of a batch as entries of an image memory, with 8 bits per channel.

        They keep the correction of their own batch, and the classes that were predicted by `logits` (B, K).
        """
        features = encoded.features.detach()
        labels, entropies = to_host(logits.argmax(dim=1), entropies)
        return {
            "shifts": torch.zeros_like(features) if encoded.shift is None else features - encoded.debiased.detach(),
            "labels": labels,
            "entropies": entropies,
            "images": batch.images.mul(255).round_().clamp_(0, 255).to(torch.uint8),
            "biases": torch.zeros_like(logits) if encoded.bias is None else encoded.bias,
        }

    def recall(self, memory: Entries, images: Tensor | None = None) -> Encoded:
        """Encode the images of a memory, or augmented copies (N, 3, S, S), and debias them by their own corrections."""
        encoded = self.embed(memory["images"].float() / 255 if images is None else images)
        return encoded._replace(shift=memory["shifts"], bias=memory["biases"])

    def step(self, loss: Tensor, used: Tensor | None = None) -> None:
        """Update the adapted parameters, unless no image is `used` or a value is not finite."""
        if self.backward(loss, used) is not None:
            self.weights.optimizer.step()

    def backward(self, loss: Tensor, used: Tensor | None = None) -> float | None:
        """Compute gradients, and return the loss; None if no image is `used` (B,), or if a value is not finite.

        If the loss or a gradient is NaN or infinite, this is counted as a skipped step.
        """
        if used is not None and used.device.type == "cpu" and not used.any():
            return None  # saves the backward pass, but would make a GPU wait
        self.weights.optimizer.zero_grad()
        loss.backward()
        norm = get_total_norm([loss.detach(), *(p.grad for p in self.adapted.values() if p.grad is not None)])
        some = torch.ones_like(loss) if used is None else used.any().to(loss.dtype)
        value, is_finite, is_used = torch.stack([loss.detach(), norm.isfinite().to(loss.dtype), some.detach()]).tolist()
        if is_finite and is_used:
            return float(value)
        self.skipped_steps += bool(is_used)
        return None

    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the last backward pass by name; zero for parameters that were not used."""
        return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in self.adapted.items()}

    @torch.no_grad()
    def _has_drifted(self, batch: Batch, logits: Tensor) -> bool:
        """Whether predictions have moved away from those of the unadapted model, by a few images of every batch.

        When entropy minimisation collapses into a few classes, its loss does not show it. Comparing how often each
        class is predicted for the same images before and after adaptation does, for any label frequencies of the
        stream: being more confident about a frequent class changes this less than predicting it for everything.
        """
        unadapted = self._unadapted_logits(batch)
        change = logits[::PROBE_STEP].softmax(dim=-1) - unadapted.softmax(dim=-1)  # (n, K)
        seen = F.pad(change, (0, 1), value=1.0).sum(dim=0)
        self.drift = self.drift * 0.5 ** (len(logits) / DRIFT_HALF_LIFE) + seen
        distance = float((self.drift[:-1] / self.drift[-1]).abs().sum())
        return not distance <= MAX_DRIFT  # also true for NaN

    def _unadapted_logits(self, batch: Batch) -> Tensor:
        """Return logits (n, K) of the unadapted model for some images of a batch that has been encoded."""
        step = PROBE_STEP
        if not self.uses_batch_statistics:  # with these, predictions depend on the whole batch
            batch, step = batch.select(slice(None, None, PROBE_STEP)), 1
        with self.weights.replaced(self.weights.initial):
            encoded = self.embed(batch.with_negatives, batch.negatives)
        return self.classify(encoded.corrected(batch.correction or Correction()))[::step]

    def restart(self) -> None:
        """Reset weights, optimiser, debiaser and all other state, as at the beginning of a stream.

        The counts of restarts and skipped steps, and the random generator of negatives, are not reset.
        """
        restarts, skipped_steps, source = self.restarts, self.skipped_steps, self.features.source
        draws = None if source is None else source.generator.get_state()
        Stateful.reset(self)
        self.restarts, self.skipped_steps = restarts + 1, skipped_steps
        if source is not None and draws is not None:
            source.generator.set_state(draws)

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        size = batch.images + batch.negatives
        probed = -(-batch.images // PROBE_STEP) + batch.negatives if options.get("guard") else 0
        return EncoderPasses(
            1, images=cls.extra_passes * size + probed, images_with_gradient=cls.gradient_passes * size
        )
