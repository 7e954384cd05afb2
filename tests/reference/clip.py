"""3.1 CLIP: the logits."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.given import Given, text_embeddings, unit


def run(given: Given, batches: list[Tensor], *, beta: float | None = None, protocol: str = "paper") -> list[Tensor]:
    t = text_embeddings(given)
    outputs = []
    with torch.no_grad():
        for images in batches:
            d = unit(given.model.encode_image(images))
            if beta is not None:
                d = d - beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
            outputs.append(given.scale * d @ t.T)
    return outputs
