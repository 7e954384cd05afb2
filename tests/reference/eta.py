"""3.3 ETA: reliable and non-redundant images, weighted by their confidence."""

from __future__ import annotations

import math

import torch
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
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    adam = Adam(trained, lr)
    e0 = margin * math.log(len(given.class_names))
    second_filter = d_margin < 1.0 and not (protocol == "reference" and beta is not None)
    q = None

    outputs = []
    for images in batches:
        d = unit(given.model.encode_image(images))
        if beta is not None:
            d = d - beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
        z = given.scale * d @ t.T
        outputs.append(z.detach())

        h = entropy(z)
        fixed_h = h.detach().tolist()
        p = torch.softmax(z.detach(), dim=1)
        reliable = [i for i in range(len(images)) if fixed_h[i] < e0]
        kept = []
        for i in reliable:
            if second_filter and q is not None:
                cosine = float(p[i] @ q / (p[i].norm() * q.norm()))
                if not abs(cosine) < d_margin:
                    continue
            kept.append(i)
        note(trace, images=len(images), reliable=len(reliable), kept=len(kept))
        if not kept:
            continue
        mean_p = sum(p[i] for i in kept) / len(kept)
        q = mean_p if q is None else 0.9 * q + 0.1 * mean_p
        loss = sum(math.exp(e0 - fixed_h[i]) * h[i] for i in kept) / len(kept)
        adam.step(torch.autograd.grad(loss, trained))
    return outputs
