"""DeYO (Lee et al. 2024, "Entropy is not Enough for Test-Time Adaptation")."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from tta_panda.errors import UnknownNameError
from tta_panda.methods.base import Protocol, TrainedMethod
from tta_panda.methods.checks import check_range
from tta_panda.methods.losses import entropy
from tta_panda.models.base import Classifier
from tta_panda.panda import Batch, Encoded, Panda, apply_plan, sample_plan

Destruction = Literal["patches", "occlusion", "pixels", "none"]


class Candidates(NamedTuple):
    """The confident images of a batch: what they are predicted, and what is left of that without the object's shape."""

    logits: Tensor  # (n, K), with gradient
    destroyed: Tensor | None  # probabilities (n, K); None where nothing was destroyed


class DeYO(TrainedMethod):
    """Entropy minimisation on images whose prediction rests on the object's shape: it falls when that is destroyed.

    Args:
        lr: learning rate of Adam.
        filter_margin: candidates have an entropy below so many nats.
        weight_margin: entropies count by `exp(weight_margin * ln K - H)`.
        plpd_threshold: of the candidates, those whose probability falls by more than this are learned from.
        entropy_weight: how much of an image's weight is due to its entropy.
        plpd_weight: how much is due to that fall, the pseudo-label probability difference.
        destroy: how shape is destroyed: `"patches"` of a grid permuted, `"occlusion"` of the centre, all `"pixels"`
            permuted, or `"none"`: no second filter and no weight from it.
        grid: cells per side of the patches.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        lr: float = 1e-3,
        filter_margin: float = 2.0,
        weight_margin: float = 0.4,
        plpd_threshold: float = 0.0,
        entropy_weight: float = 1.0,
        plpd_weight: float = 1.0,
        destroy: Destruction = "patches",
        grid: int = 4,
        debias: Panda | None = None,
        protocol: Protocol = "paper",
        seed: int = 0,
    ):
        check_range("lr", lr, 0)
        check_range("filter_margin", filter_margin, 0)
        check_range("plpd_threshold", plpd_threshold, -1, 1)
        check_range("grid", grid, 2, classifier.model.image_size)
        if destroy not in get_args(Destruction):
            raise UnknownNameError("destruction", destroy, get_args(Destruction))
        super().__init__(classifier, debias=debias, protocol=protocol, seed=seed)
        self.lr = lr
        self.filter_margin = filter_margin
        self.weight_margin = weight_margin * math.log(len(classifier.class_names))
        self.plpd_threshold = plpd_threshold
        self.entropy_weight = entropy_weight
        self.plpd_weight = plpd_weight
        self.destroy = destroy
        self.grid = grid
        self.generator_state: Tensor
        self.add_state("generator_state", torch.Generator().manual_seed(seed).get_state())

    def make_optimizer(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.lr, betas=(0.9, 0.999), weight_decay=0.0)

    def _adapt(self, images: Tensor) -> Tensor:
        reference = self.follows_reference and self.features.debiaser is not None
        batch = self.features.plain(images) if reference else self.features.draw(images)
        with torch.enable_grad():
            encoded = self.encode(batch)
            logits = self.classifier.logits(encoded.features if reference else self.features.debias(encoded))
            confident = (entropy(logits.detach()) < self.filter_margin).nonzero()[:, 0]
            if len(confident):
                if reference:
                    self._learn(self._against_negatives(batch, encoded, confident), differentiate_weights=True)
                else:
                    self._learn(self._against_destroyed(batch, encoded, confident, logits))
        return logits

    def _learn(self, candidates: Candidates, differentiate_weights: bool = False) -> None:
        entropies = entropy(candidates.logits)
        weights = self.entropy_weight * (self.weight_margin - entropies).exp()
        kept = torch.ones_like(entropies, dtype=torch.bool)
        if candidates.destroyed is not None:
            label = candidates.logits.argmax(dim=1, keepdim=True)
            difference = (candidates.logits.softmax(dim=-1) - candidates.destroyed).gather(1, label)[:, 0]
            weights = weights + self.plpd_weight * difference.exp()
            kept = difference > self.plpd_threshold
        if kept.any():
            weights = weights if differentiate_weights else weights.detach()
            self.step((weights * entropies)[kept].mean())

    @torch.no_grad()
    def _probabilities(self, encoded: Encoded) -> Tensor:
        return self.classifier.logits(self.features.debias(encoded)).softmax(dim=-1)

    def _against_destroyed(self, batch: Batch, encoded: Encoded, confident: Tensor, logits: Tensor) -> Candidates:
        if self.destroy == "none":
            return Candidates(logits[confident], None)
        with torch.no_grad():
            destroyed = self.encode(Batch(self._destroy(batch.images[confident])))
        # The offset is the batch's: what was destroyed is still seen through the same corruption.
        shifted = encoded.select(confident)._replace(features=destroyed.features)
        return Candidates(logits[confident], self._probabilities(shifted))

    def _against_negatives(self, batch: Batch, encoded: Encoded, confident: Tensor) -> Candidates:
        """The authors' code: negatives of the confident images alone serve as offset and in the place of x'."""
        drawn = self.features.draw(batch.images[confident])
        assert drawn.negatives is not None
        assert encoded.raw is not None
        negatives = self.encode(Batch(drawn.negatives))
        assert negatives.raw is not None
        together = self.features.split(torch.cat([encoded.raw[confident], negatives.raw]), drawn)
        logits = self.classifier.logits(self.features.debias(together))
        destroyed = self.classifier.logits(negatives.features).mean(dim=0, keepdim=True).softmax(dim=-1)
        return Candidates(logits, destroyed.expand_as(logits))

    def _destroy(self, images: Tensor) -> Tensor:
        """x' (n, C, H, W)."""
        generator = torch.Generator()
        generator.set_state(self.generator_state.cpu())
        destroyed = _DESTRUCTIONS[self.destroy](images, self.grid, generator)
        self.generator_state = generator.get_state()
        return destroyed


def _permute_patches(images: Tensor, grid: int, generator: torch.Generator) -> Tensor:
    plan = sample_plan("within_image", images, images.shape[-1] // grid, len(images), generator)
    return apply_plan(images, plan)


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
