"""MEMO: for every image one step of SGD on the entropy of its views' mean prediction, from the first weights."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.given import Given, image_layer_norms, note, text_embeddings, unit


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    views: int,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    start = [w.detach().clone() for w in trained]
    outputs = []
    for images in batches:
        offset = 0.0
        if beta is not None:
            with torch.no_grad():
                offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)

        def logits(x: Tensor, offset: Tensor | float = offset) -> Tensor:
            return given.scale * (unit(given.model.encode_image(x)) - offset) @ t.T

        answers = []
        for image, its_views in zip(images, given.views(images, views + 1), strict=True):
            p = torch.softmax(logits(its_views[1:]), dim=1).mean(dim=0)
            gradients = torch.autograd.grad(-(p * torch.log(p)).sum(), trained)
            with torch.no_grad():
                before = logits(image[None])[0]
                for w, g in zip(trained, gradients, strict=True):
                    w.sub_(lr * g)
                answers.append(logits(image[None])[0])
                for w, w0 in zip(trained, start, strict=True):
                    w.copy_(w0)
            note(trace, moved=float((answers[-1] - before).abs().max()))
        outputs.append(torch.stack(answers))
    return outputs
