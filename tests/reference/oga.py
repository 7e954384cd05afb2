"""OGA: Gaussians of one covariance around remembered images, the text as prior."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.given import Given, entropy, note, text_embeddings, unit


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    slots: int,
    temperature: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    classes, size = t.shape
    memory = [[(math.log(classes), None)] * slots for _ in range(classes)]  # entropy, feature
    outputs = []
    with torch.no_grad():
        for images in batches:
            v = unit(given.model.encode_image(images))
            d = v
            if beta is not None:
                d = v - beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
            z = given.scale * d @ t.T
            for i in range(len(images)):
                own = memory[int(z[i].argmax())]
                worst = max(range(slots), key=lambda j: own[j][0])
                if float(entropy(z[i])) < own[worst][0]:
                    own[worst] = (float(entropy(z[i])), v[i])

            held = [[feature for _, feature in own if feature is not None] for own in memory]
            mu = t.clone()
            for k in range(classes):
                if len(held[k]) >= 2:
                    mu[k] = sum(held[k]) / (slots if protocol == "reference" else len(held[k]))
            inverse = size * torch.eye(size)
            n = sum(map(len, held))
            note(trace, n=n, most=max(map(len, held)), fewest=min(map(len, held)))
            if max(map(len, held)) > 2:
                r = torch.stack([x - mu[k] for k in range(classes) for x in held[k]]).double()
                r = r - r.mean(dim=0)
                c = r.T @ r / (n - 1)
                if n <= 4 * size:
                    inverse = size * torch.linalg.inv((n - 1) * c + c.diagonal().sum() * torch.eye(size))
                else:
                    inverse = torch.linalg.inv(c)
                inverse = inverse.float()
            g = torch.stack([v @ inverse @ m - 0.5 * m @ inverse @ m for m in mu], dim=1)
            p = torch.softmax(z, dim=1) * torch.softmax(temperature * g, dim=1)
            outputs.append(torch.log(p / p.sum(dim=1, keepdim=True)))
    return outputs
