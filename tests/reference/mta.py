"""MTA: mean shift over the views of an image, in float64, image by image."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from reference.given import Given, note, text_embeddings, unit


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    views: int,
    neighbours: float,
    sharpness: float,
    affinity_weight: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given).double().numpy()
    outputs = []
    with torch.no_grad():
        for images in batches:
            offset = np.zeros(t.shape[1])
            if beta is not None:
                negatives = unit(given.model.encode_image(given.negatives(images)))
                offset = beta * negatives.double().numpy().mean(axis=0)
            answers = []
            for image_views in given.views(images, views):
                f = unit(given.model.encode_image(image_views)).double().numpy()
                p = softmax(given.scale * (f - offset) @ t.T)
                m = mode(f, p, neighbours, 1 / sharpness, affinity_weight)
                note(trace, moved=float(np.linalg.norm(m - f[0])))
                answers.append(given.scale * t @ (m - offset))
            outputs.append(torch.from_numpy(np.array(answers)).float())
    return outputs


def mode(f: np.ndarray, p: np.ndarray, share: float, lambda_y: float, lambda_q: float) -> np.ndarray:
    n = len(f)
    h2 = np.empty(n)
    for j in range(n):
        others = sorted(((f[j] - f[q]) ** 2).sum() for q in range(n) if q != j)
        nearest = others[: max(1, int(share * (n - 1)))]
        h2[j] = 0.5 * sum(nearest) / len(nearest)
    y, m = np.full(n, 1 / n), f[0]
    for _ in range(5):
        for _ in range(5):
            d = np.exp(-((f - m) ** 2).sum(axis=1) / (2 * h2))
            y = softmax((d + lambda_q * (p @ p.T) @ y) / lambda_y)
        for _ in range(5):
            d = np.exp(-((f - m) ** 2).sum(axis=1) / (2 * h2))
            m = (y * d) @ f / (y * d).sum()
            m = m / np.linalg.norm(m)
    return m


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
