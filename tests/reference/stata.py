"""StatA: Gaussians that the texts hold, and neighbours that agree, within one batch."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.given import Given, note, text_embeddings, unit


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    steps: int = 10,
    inner_steps: int = 5,
    neighbours: int = 3,
    text_weight: float = 1.0,
    alpha: float = 1.0,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given).double()
    outputs = []
    with torch.no_grad():
        for images in batches:
            v = unit(given.model.encode_image(images)).double()
            d = v
            if beta is not None:
                d = v - beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
            log_p = torch.log_softmax(given.scale * d @ t.T, dim=1)
            p = log_p.exp()
            count = len(v)

            w = torch.zeros(count, count, dtype=torch.double)
            for i in range(count):
                nearest = sorted((j for j in range(count) if j != i), key=lambda j: -float(v[i] @ v[j]))
                for j in nearest[:neighbours]:
                    w[i, j] = v[i] @ v[j]

            first = sum(p[i, k] * (v[i] - t[k]) ** 2 for i in range(count) for k in range(len(t))) / p.sum()
            mu, sigma, z = t.clone(), first.expand_as(t).clone(), p.clone()
            for outer in range(steps + 1):
                density = torch.stack(
                    [
                        -0.5 * ((v - m) ** 2 / s).sum(dim=1) - 0.5 * s.log().sum()
                        for m, s in zip(mu, sigma, strict=True)
                    ],
                    dim=1,
                )
                for _ in range(inner_steps):
                    exponent = density + 50 / (2 * neighbours) * (w.T @ z + w @ z)
                    log_z = torch.log_softmax(text_weight * log_p + exponent / 50, dim=1)
                    z = log_z.exp()
                if outer == steps:
                    break
                hard = z.argmax(dim=1).tolist()
                note(trace, present=len(set(hard)), changed=int((z.argmax(dim=1) != p.argmax(dim=1)).sum()))
                for k in range(len(t)):
                    b = hard.count(k) / (alpha + hard.count(k))
                    if b == 0:  # where a class has no image, z can have no weight to divide by
                        mu[k], sigma[k] = t[k], first
                        continue
                    mu[k] = unit(b * unit(z[:, k] @ v) + (1 - b) * t[k])
                    own = (z[:, k, None] * (v - mu[k]) ** 2).sum(dim=0) / z[:, k].sum()
                    sigma[k] = b * own + (1 - b) * (first + (t[k] - mu[k]) ** 2)
            outputs.append(log_z.float())
    return outputs
