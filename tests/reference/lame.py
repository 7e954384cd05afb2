"""LAME: assignments of one batch that follow the text and similar images."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.given import Given, note, text_embeddings, unit


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    affinity: str = "rbf",
    neighbours: int = 5,
    steps: int = 100,
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
            count = len(v)

            gaps = [[math.sqrt(float(((a - b) ** 2).sum())) for b in v] for a in v]
            ranked = [sorted((j for j in range(count) if j != i), key=gaps[i].__getitem__) for i in range(count)]
            w = torch.zeros(count, count, dtype=torch.double)
            if affinity == "knn":
                for i in range(count):
                    for j in ranked[i][:neighbours]:
                        w[i, j] += 0.5
                        w[j, i] += 0.5
            else:
                last = min(neighbours, count - 1) - 1
                width = sum(gaps[i][ranked[i][last]] for i in range(count)) / count
                for i in range(count):
                    for j in range(count):
                        w[i, j] = math.exp(-(gaps[i][j] ** 2) / (2 * width**2))

            y = log_p.exp()
            for _ in range(steps):
                log_y = torch.log_softmax(log_p + w @ y, dim=1)
                y = log_y.exp()
            note(trace, changed=int((y.argmax(dim=1) != log_p.argmax(dim=1)).sum()))
            outputs.append(log_y.float())
    return outputs
