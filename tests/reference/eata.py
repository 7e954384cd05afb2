"""EATA: ETA, and a penalty for moving the weights that predictions depend on."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from reference.given import Given, entropy, image_layer_norms, note, text_embeddings, unit
from reference.optimisers import Adam


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    margin: float,
    d_margin: float,
    fisher_weight: float,
    fisher_images: int,
    clean: Tensor | None = None,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    """`clean` are images from before the stream; without them, the first ones of the stream take their place."""
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    start = [w.detach().clone() for w in trained]
    adam = Adam(trained, lr)
    e0 = margin * math.log(len(t))
    second_filter = d_margin < 1.0 and not (protocol == "reference" and beta is not None)
    q = None

    def squares(images: Tensor) -> list[list[Tensor]]:
        """Of the gradients at the first weights: of each image, or of batches of 64 in the authors' code."""
        now = [w.detach().clone() for w in trained]
        put(start)
        found = []
        for some in images.split(64 if protocol == "reference" else 1):
            z = given.scale * unit(given.model.encode_image(some)) @ t.T
            found.append([g**2 for g in torch.autograd.grad(F.cross_entropy(z, z.argmax(dim=1)), trained)])
        put(now)
        return found

    def put(values: list[Tensor]) -> None:
        with torch.no_grad():
            for w, value in zip(trained, values, strict=True):
                w.copy_(value)

    measured = [] if clean is None else squares(clean)
    left = fisher_images - (0 if clean is None else len(clean))
    outputs = []
    for images in batches:
        if left > 0:
            measured += squares(images[:left])
            left -= len(images)
        fisher = [sum(each) / len(measured) for each in zip(*measured, strict=True)]

        d = unit(given.model.encode_image(images))
        if beta is not None:
            d = d - beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
        z = given.scale * d @ t.T
        outputs.append(z.detach())
        h, p = entropy(z), torch.softmax(z.detach(), dim=1)
        kept = [i for i in range(len(images)) if h[i] < e0]
        if second_filter and q is not None:
            kept = [i for i in kept if abs(float(p[i] @ q / (p[i].norm() * q.norm()))) < d_margin]
        if not kept:
            continue
        mean_p = p[kept].mean(dim=0)
        q = mean_p if q is None else 0.9 * q + 0.1 * mean_p
        loss = sum(math.exp(e0 - float(h[i].detach())) * h[i] for i in kept) / len(kept)
        penalty = sum((f * (w - w0) ** 2).sum() for f, w, w0 in zip(fisher, trained, start, strict=True))
        note(trace, penalty=float(fisher_weight * penalty.detach()))
        adam.step(torch.autograd.grad(loss + fisher_weight * penalty, trained))
    return outputs
