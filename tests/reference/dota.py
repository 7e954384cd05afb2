"""DOTA: Gaussians that follow the predictions, in float64, image by image."""

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
    growth: float,
    max_weight: float,
    shrinkage: float,
    trace: list[dict] | None = None,
    per_class: bool = False,
) -> list[Tensor]:
    """`per_class` estimates a covariance for every class, as published, instead of their mean alone."""
    t = text_embeddings(given).double()
    classes, size = t.shape
    mu, c = torch.full_like(t, 0.001), torch.ones(classes, dtype=torch.double)
    sigma = [0.002 * torch.eye(size, dtype=torch.double) for _ in range(classes)]
    outputs = []
    with torch.no_grad():
        for images in batches:
            offset = torch.zeros(size, dtype=torch.double)
            if beta is not None:
                offset = beta * unit(given.model.encode_image(given.negatives(images))).double().mean(dim=0)
            answers = []
            for image_views in given.views(images, views):
                f = unit(given.model.encode_image(image_views)).double()
                z = given.scale * (f - offset) @ t.T
                kept = entropy(z.float()).sort(stable=True).indices[: max(1, int(keep * views))]
                f, z = f[kept], z[kept]
                n = len(kept)
                mean_sigma = sum(sigma) / classes
                inverse = torch.linalg.inv((1 - shrinkage) * mean_sigma + shrinkage * torch.eye(size))
                x = f.mean(dim=0)
                g = torch.stack([x @ inverse @ m - 0.5 * m @ inverse @ m for m in mu])
                answer = z.mean(dim=0) + min(growth * float(c.mean()) / n, max_weight) * g
                note(trace, changed=int(answer.argmax()) != int(z.mean(dim=0).argmax()))
                answers.append(answer)

                p = torch.softmax(z, dim=1)
                for k in range(classes):
                    total = c[k] + p[:, k].sum()
                    before = sigma[k] if per_class else mean_sigma
                    scatter = sum(p[v, k] * torch.outer(f[v] - mu[k], f[v] - mu[k]) for v in range(n))
                    sigma[k] = (c[k] * before + scatter) / total
                    mu[k] = (c[k] * mu[k] + sum(p[v, k] * f[v] for v in range(n))) / total
                    c[k] = total
            outputs.append(torch.stack(answers).float())
    return outputs
