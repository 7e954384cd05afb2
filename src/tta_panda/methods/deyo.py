"""DeYO (Lee et al. 2024, "Entropy is not Enough for Test-Time Adaptation")."""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
from torch import Tensor

from tta_panda.checks import check_range
from tta_panda.methods.batch import Batch, Encoded
from tta_panda.methods.losses import entropy
from tta_panda.methods.trained import TrainedMethod, TrainedOptions
from tta_panda.models.base import Classifier
from tta_panda.panda import Panda
from tta_panda.panda.negatives import PatchGrid, apply_plan, sample_within_image

Destruction = Literal["patches", "occlusion", "pixels", "none"]


class DeYO(TrainedMethod):
    """Entropy minimisation on images whose prediction rests on the object's shape: it falls when that is destroyed.

    The defaults are those of DeYO's own code for ResNet-50, except for the optimiser: SGD there, Adam in Panda's paper.

    Args:
        lr: learning rate of Adam.
        filter_margin: candidates have an entropy below this many nats; None for half of ln K.
        weight_margin: entropies count by `exp(weight_margin * ln K - H)`.
        plpd_threshold: of the candidates, those whose probability falls by more than this are learned from.
        entropy_weight: how much of an image's weight is due to its entropy.
        plpd_weight: how much is due to that fall, the pseudo-label probability difference.
        destroy: how shape is destroyed: `"patches"` of a grid permuted, `"occlusion"` of the centre, all `"pixels"`
            permuted, or `"none"`: no second filter and no weight from it.
        grid: cells per side of the patches. Where the side is no multiple of it, a margin mirrors the cells beside it.
        common: the arguments of every method that trains the encoder.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 2.5e-4,
        filter_margin: float | None = None,
        weight_margin: float = 0.4,
        plpd_threshold: float = 0.2,
        entropy_weight: float = 1.0,
        plpd_weight: float = 1.0,
        destroy: Destruction = "patches",
        grid: int = 4,
        **common: Unpack[TrainedOptions],
    ):
        super().__init__(classifier, lr=lr, **common)
        largest_entropy = math.log(len(classifier.class_names))
        self.filter_margin = 0.5 * largest_entropy if filter_margin is None else filter_margin
        check_range("filter_margin", self.filter_margin, 0)
        check_range("plpd_threshold", plpd_threshold, -1, 1)
        check_range("grid", grid, 2, classifier.model.image_size)
        self.weight_margin = weight_margin * largest_entropy
        self.plpd_threshold = plpd_threshold
        self.entropy_weight = entropy_weight
        self.plpd_weight = plpd_weight
        self.destroy = destroy
        self.grid = grid
        self.generator_state: Tensor
        self.add_state("generator_state", torch.Generator().manual_seed(self.features.seed).get_state())

    def _adapt(self, batch: Batch) -> Tensor:
        against_negatives = self.follows_reference and self.features.are_debiased and isinstance(self.debias, Panda)
        with torch.enable_grad():
            encoded = self.embed(batch.images) if against_negatives else self.encode(batch)
            logits = self.classify(encoded)
            confident = (entropy(logits.detach()) < self.filter_margin).nonzero()[:, 0]
            if len(confident):
                if against_negatives:
                    self._learn(*self._against_negatives(batch, encoded, confident))
                else:
                    self._learn(logits[confident], self._without_shape(batch, encoded, confident))
        return logits

    def _learn(self, logits: Tensor, destroyed: Tensor | None) -> None:
        """One step from logits (n, K) of confident images, and their probabilities (n, K) with the shape destroyed."""
        entropies = entropy(logits)
        weights = self.entropy_weight * (self.weight_margin - entropies).exp()
        kept = torch.ones_like(entropies, dtype=torch.bool)
        if destroyed is not None:
            label = logits.argmax(dim=1, keepdim=True)
            difference = (logits.softmax(dim=-1) - destroyed).gather(1, label)[:, 0]
            weights = weights + self.plpd_weight * difference.exp()
            kept = difference > self.plpd_threshold
        if kept.any():
            weights = weights if self.follows_reference else weights.detach()  # the authors' code does not detach
            self.step((weights * entropies)[kept].mean())

    @torch.no_grad()
    def _without_shape(self, batch: Batch, encoded: Encoded, confident: Tensor) -> Tensor | None:
        if self.destroy == "none":
            return None
        destroyed = self.embed(self._destroy(batch.images[confident]))
        # The correction is the batch's: what was destroyed is still seen through the same corruption.
        corrected = encoded.select(confident)._replace(features=destroyed.features)
        return self.classify(corrected).softmax(dim=-1)

    def _against_negatives(self, batch: Batch, encoded: Encoded, confident: Tensor) -> tuple[Tensor, Tensor | None]:
        """The authors' code: negatives of the confident images alone serve as offset and in the place of x'."""
        encoded, negatives = encoded.select(confident), self.features.draw(batch.images[confident])
        assert negatives is not None
        with torch.no_grad():
            embedded, destroyed = encoded.features[:0], None
            if len(negatives.images):  # a single image of a single patch has none
                embedded = self.embed(negatives.images).features
                destroyed = self.classifier.logits(embedded).mean(dim=0, keepdim=True).softmax(dim=-1)
        logits = self.classify(self.features.corrected(self.features.with_offset(encoded, negatives, embedded)))
        return logits, None if destroyed is None else destroyed.expand_as(logits)

    def _destroy(self, images: Tensor) -> Tensor:
        """x' (n, C, H, W)."""
        generator = torch.Generator()
        generator.set_state(self.generator_state.cpu())
        destroyed = _DESTRUCTIONS[self.destroy](images, self.grid, generator)
        self.generator_state = generator.get_state()
        return destroyed


def _permute_patches(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    height, width = images.shape[-2:]
    cells = PatchGrid(min(height, width) // grid, grid, grid, height, width)
    return apply_plan(images, sample_within_image(len(images), cells, len(images), generator))


def _occlude_centre(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    """The middle half of each side takes the image's mean colour."""
    height, width = images.shape[-2:]
    occluded = images.clone()
    mean = images.mean(dim=(2, 3), keepdim=True)
    occluded[:, :, height // 4 : height // 4 + height // 2, width // 4 : width // 4 + width // 2] = mean
    return occluded


def _permute_pixels(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    order = torch.randperm(images.shape[-2] * images.shape[-1], generator=generator).to(images.device)
    return images.flatten(2)[:, :, order].view_as(images)


_DESTRUCTIONS = {"patches": _permute_patches, "occlusion": _occlude_centre, "pixels": _permute_pixels}
