"""VTE: the mean of the most confident views' features, against the texts."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.given import Given, entropy, note, text_embeddings, unit


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
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
                v = unit(given.model.encode_image(image_views))
            h = entropy(given.scale * (v - offset) @ t.T).tolist()
            kept = sorted(range(views), key=lambda j: h[j])[: max(1, int(keep * views))]
            note(trace, plain=0 in kept)
            mean = sum(v[j] for j in kept) / len(kept)
            answers.append(given.scale * t @ (mean - offset))
        outputs.append(torch.stack(answers))
    return outputs
