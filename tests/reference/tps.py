"""3.7 TPS: for every image alone, one step on a shift of the text embeddings."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.given import Given, entropy, note, text_embeddings, unit
from reference.optimisers import first_adamw_step


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    views: int,
    keep: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    outputs = []
    for images in batches:
        offset = 0.0
        if beta is not None:
            with torch.no_grad():
                offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
        answers = []
        for image_views in given.views(images, views):
            with torch.no_grad():
                d = unit(given.model.encode_image(image_views)) - offset
            shift = torch.zeros_like(t).requires_grad_(True)
            z = given.scale * d @ unit(t + shift).T
            count = max(1, int(keep * views))
            rising = torch.sort(entropy(z.detach()), stable=True)
            kept = rising.indices[:count]
            p = torch.softmax(z[kept], dim=1).mean(dim=0)
            loss = -(p * p.log()).sum()
            (g,) = torch.autograd.grad(loss, [shift])
            gap = float(rising.values[count] - rising.values[count - 1]) if count < views else math.inf
            note(trace, smallest_gradient=float(g.abs().min()), gap=gap)
            with torch.no_grad():
                new_shift = first_adamw_step(shift, g, lr)
                answers.append(given.scale * unit(t + new_shift) @ d[0])
        outputs.append(torch.stack(answers))
    return outputs
