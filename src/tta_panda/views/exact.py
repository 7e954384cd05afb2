"""Views equal to Pillow's, on any device: all views of an image at once, sorted by operation."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

from tta_panda.views.crops import crop_views
from tta_panda.views.operations import INDIVIDUAL, SHARED
from tta_panda.views.plan import NO_OPERATION, OPERATIONS, ViewPlan


def views_as_pillow(image: Tensor, plan: ViewPlan, place: int, part: slice) -> Tensor:
    """Some of the planned views (V, 3, h, w), in [0, 1], of an image (3, H, W) of uint8 at its place in the plan."""
    crops = crop_views(image, plan.boxes[place, part], plan.flips[place, part], plan.sides)
    if plan.augmentation == "crops":
        return crops.float().div_(255)
    chains = _apply_chains(crops, plan.operations[place, part], plan.strengths[place, part])
    return _mix(crops, chains, plan.weights[place, part])


def _apply_chains(crops: Tensor, operations: Tensor, strengths: Tensor) -> list[list[Tensor]]:
    """For each chain, the results (3, H, W) of all views; within a step, each operation runs once for all of them."""
    images = [list(crops) for _ in range(operations.shape[1])]
    for step in range(operations.shape[2]):
        for (name, shared), members in _groups(operations[..., step], strengths[..., step]).items():
            found = [images[chain][view] for view, chain, _ in members]
            together = torch.stack(found) if len(found) > 1 else found[0][None]
            if shared is None:
                each = torch.tensor([strength for _, _, strength in members], dtype=torch.float64)
                results = INDIVIDUAL[name](together, each)
            else:
                results = SHARED[name](together, shared)
            for (view, chain, _), result in zip(members, results, strict=True):
                images[chain][view] = result
    return images


def _groups(operations: Tensor, strengths: Tensor) -> dict[tuple[str, int | None], list[tuple[int, int, float]]]:
    """The (view, chain, strength) that are processed together: by operation, and by strength where that is shared."""
    groups = defaultdict(list)
    chosen, given = operations.tolist(), strengths.tolist()
    for view, chain in (operations != NO_OPERATION).nonzero().tolist():
        name, strength = OPERATIONS[chosen[view][chain]], given[view][chain]
        groups[name, int(strength) if name in SHARED else None].append((view, chain, strength))
    return groups


def _mix(crops: Tensor, chains: list[list[Tensor]], weights: Tensor) -> Tensor:
    """Weighted means, not rounded.

    The published code mixes after normalisation. Normalising a channel is affine and the weights sum to one, so mixing
    in [0, 1] and normalising afterwards is the same.
    """
    weights = (weights / 255).float().to(crops.device)[..., None, None, None]  # (V, 1 + chains, 1, 1, 1)
    mixed = crops.float().mul_(weights[:, 0])
    for chain, weight in zip(chains, weights[:, 1:].unbind(dim=1), strict=True):
        mixed.addcmul_(torch.stack(chain).float(), weight)
    return mixed
