"""IM: one step on the mean entropy less the entropy of the mean."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.given import Given, entropy, image_layer_norms, text_embeddings, unit
from reference.optimisers import Adam


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    diversity: float,
) -> list[Tensor]:
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    adam = Adam(trained, lr)

    def logits(images: Tensor, negatives: Tensor | None) -> Tensor:
        d = unit(given.model.encode_image(images))
        if negatives is not None:
            d = d - beta * unit(given.model.encode_image(negatives)).mean(dim=0)
        return given.scale * d @ t.T

    outputs = []
    for images in batches:
        negatives = None if beta is None else given.negatives(images)
        z = logits(images, negatives)
        mean = torch.softmax(z, dim=1).mean(dim=0)
        loss = entropy(z).mean() + diversity * (mean * mean.log()).sum()
        adam.step(torch.autograd.grad(loss, trained))
        if protocol == "reference":  # as Tent
            with torch.no_grad():
                z = logits(images, None if beta is None else given.negatives(images))
        outputs.append(z.detach())
    return outputs
