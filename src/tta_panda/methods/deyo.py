"""DeYO (Lee et al. 2024, "Entropy is not Enough for Test-Time Adaptation")."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from tta_panda.errors import InvalidInputError
from tta_panda.methods.base import BatchSize, EncoderPasses
from tta_panda.methods.features import Batch, Encoded
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod
from tta_panda.options import NonNegative
from tta_panda.panda import Panda
from tta_panda.panda.negatives import PatchGrid, apply_plan, sample_within_image
from tta_panda.transfers import to_device

Destruction = Literal["patches", "occlusion", "pixels", "none"]


class DeYO(TrainedMethod):
    """Entropy minimisation on images whose predicted probability drops when the object's shape is destroyed.

    The drop is the pseudo-label probability difference (PLPD). The defaults are those of DeYO's own code for ResNet-50,
    except for the optimiser: SGD there, Adam in Panda's paper.

    Args:
        lr: learning rate of Adam.
        filter_margin: candidates have an entropy below this many nats; None for half of ln K.
        weight_margin: an image of entropy H gets the weight `exp(weight_margin * ln K - H)`.
        plpd_threshold: candidates are used for training if their PLPD is above this.
        entropy_weight: factor of the weight by entropy.
        plpd_weight: factor of the weight by PLPD, `exp(PLPD)`.
        destroy: how the shape is destroyed: permuted `"patches"` of a grid, `"occlusion"` of the centre, permuted
            `"pixels"`, or `"none"` to use neither the filter nor the weight by PLPD.
        grid: cells per side of the grid of patches. If the side is not a multiple of it, the border is filled by
            mirroring the adjacent cells.
    """

    lr: NonNegative = 2.5e-4
    filter_margin: NonNegative | None = None
    weight_margin: float = 0.4
    plpd_threshold: Annotated[float, Field(ge=-1, le=1)] = 0.2
    entropy_weight: float = 1.0
    plpd_weight: float = 1.0
    destroy: Destruction = "patches"
    grid: Annotated[int, Field(ge=2)] = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid > self.classifier.model.image_size:
            raise InvalidInputError(
                f"grid must be at most {self.classifier.model.image_size}, the side of the images, got {self.grid}."
            )
        largest_entropy = math.log(len(self.classifier.class_names))
        self.max_entropy = 0.5 * largest_entropy if self.filter_margin is None else self.filter_margin
        self.reference_entropy = self.weight_margin * largest_entropy
        self.generator: torch.Generator
        self.add_state("generator", torch.Generator().manual_seed(self.seed))

    def _adapt(self, batch: Batch) -> Tensor:
        active = self.features.active
        against_negatives = self.follows_reference and active is not None and isinstance(self.debias, Panda)
        encoded = self.embed(batch.images) if against_negatives else self.encode(batch)
        logits = self.classify(encoded)
        confident = (entropy(logits.detach()) < self.max_entropy).nonzero()[:, 0]
        if len(confident):
            if against_negatives:
                self._learn(*self._against_negatives(batch, encoded, confident))
            else:
                self._learn(logits[confident], self._without_shape(batch, encoded, confident))
        return logits

    def _learn(self, logits: Tensor, destroyed: Tensor | None) -> None:
        """Take a step, given logits (n, K) of confident images, and their probabilities (n, K) with destroyed shape."""
        entropies = entropy(logits)
        weights = self.entropy_weight * (self.reference_entropy - entropies).exp()
        kept = torch.ones_like(entropies, dtype=torch.bool)
        if destroyed is not None:
            label = logits.argmax(dim=1, keepdim=True)
            difference = (logits.softmax(dim=-1) - destroyed).gather(1, label)[:, 0]
            weights = weights + self.plpd_weight * difference.exp()
            kept = difference > self.plpd_threshold
        weights = weights if self.follows_reference else weights.detach()  # the authors' code does not detach
        self.step((weights * entropies).where(kept, 0.0).sum() / kept.sum().clamp_min(1), kept)

    @torch.no_grad()
    def _without_shape(self, batch: Batch, encoded: Encoded, confident: Tensor) -> Tensor | None:
        if self.destroy == "none":
            return None
        destroyed = _DESTRUCTIONS[self.destroy](batch.images[confident], self.grid, self.generator)
        # Images with destroyed shape have the same corruption.
        return self.classify(self.encode_like(encoded.select(confident), destroyed)).softmax(dim=-1)

    def _against_negatives(self, batch: Batch, encoded: Encoded, confident: Tensor) -> tuple[Tensor, Tensor | None]:
        """Follow the authors' code: negatives of the confident images give the offset, and also replace x'."""
        encoded, negatives = encoded.select(confident), self.features.draw(batch.images[confident])
        assert negatives is not None
        with torch.no_grad():
            embedded, destroyed = encoded.features[:0], None
            if len(negatives.images):  # a single image of one patch has no negatives
                embedded = self.embed(negatives.images).features
                destroyed = self.classifier.logits(embedded).mean(dim=0, keepdim=True).softmax(dim=-1)
        encoded = self.features.with_offset(encoded, negatives, embedded)
        logits = self.classify(encoded.corrected(self.features.decide(encoded)))
        return logits, None if destroyed is None else destroyed.expand_as(logits)

    @classmethod
    def expected_passes(cls, batch: BatchSize, options: dict[str, Any]) -> EncoderPasses:
        passes = super().expected_passes(batch, options)
        if options["protocol"] == "reference" and batch.negatives:
            passes.images += batch.negatives  # without gradient there
            passes.images_with_gradient -= batch.negatives
        elif options["destroy"] != "none":
            passes.images += batch.images
        return passes


def _permute_patches(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    height, width = images.shape[-2:]
    cells = PatchGrid(min(height, width) // grid, grid, grid, height, width)
    return apply_plan(images, sample_within_image(len(images), cells, len(images), generator))


def _occlude_centre(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    """Fill the middle half of each side with the image's mean colour."""
    height, width = images.shape[-2:]
    occluded = images.clone()
    mean = images.mean(dim=(2, 3), keepdim=True)
    occluded[:, :, height // 4 : height // 4 + height // 2, width // 4 : width // 4 + width // 2] = mean
    return occluded


def _permute_pixels(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    order = torch.randperm(images.shape[-2] * images.shape[-1], generator=generator)
    return images.flatten(2)[:, :, to_device(order, images.device)].view_as(images)


_DESTRUCTIONS = {"patches": _permute_patches, "occlusion": _occlude_centre, "pixels": _permute_pixels}
