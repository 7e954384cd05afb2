"""ECALP: label propagation over a graph that is built anew for every image."""

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
    text_neighbours: int,
    image_neighbours: int,
    sharpness: float,
    steps: int,
    capacity: int,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given).double()
    classes = len(t)
    mean = t.mean(dim=0)
    omega = unit(((t - mean) ** 2).sum(dim=0))
    images: dict[int, tuple] = {}  # feature and cosines with texts, by number
    nearest: dict[int, list[tuple]] = {}  # of each image, the most similar (similarity, number), itself included
    start: dict[int, Tensor] = {}  # of each image, what its propagation starts from
    seen = 0
    outputs = []
    with torch.no_grad():
        for batch in batches:
            v = unit(given.model.encode_image(batch)).double()
            d = v
            if beta is not None:
                d = v - beta * unit(given.model.encode_image(given.negatives(batch))).double().mean(dim=0)
            answers = []
            for x, of_texts in zip(v, d @ t.T, strict=True):
                if len(images) == capacity:
                    oldest = min(images)
                    for held in (images, nearest, start):
                        del held[oldest]
                    nearest = {i: [pair for pair in own if pair[1] != oldest] for i, own in nearest.items()}
                images[seen], start[seen] = (x, of_texts), torch.zeros(classes, dtype=torch.double)
                similar = [(max(0.0, float(unit(other * omega) @ x)), i) for i, (other, _) in images.items()]
                for similarity, i in similar[:-1]:
                    nearest[i] = sorted([*nearest[i], (similarity, seen)], key=lambda pair: -pair[0])[:image_neighbours]
                nearest[seen] = sorted(similar, key=lambda pair: -pair[0])[:image_neighbours]
                # The same image once more, at the end, which takes part in nothing later.
                graph = {
                    i: sorted([*nearest[i], (similarity, seen + 1)], key=lambda pair: -pair[0])[:image_neighbours]
                    for similarity, i in similar
                }
                graph[seen + 1] = graph[seen]
                row = {i: classes + n for n, i in enumerate(graph)}
                a = torch.zeros(classes + len(row), classes + len(row), dtype=torch.double)
                for i, own in graph.items():
                    cosines = of_texts if i == seen + 1 else images[i][1]
                    for k in sorted(range(classes), key=lambda k: -float(cosines[k]))[:text_neighbours]:
                        a[row[i], k] = max(0.0, float(cosines[k])) ** sharpness
                    for similarity, j in own:
                        a[row[i], row[j]] = similarity**sharpness
                w = a + a.T
                root = torch.diag(1 / (w.sum(dim=1).sqrt() + 1e-6))
                w = root @ w @ root
                y = torch.cat([torch.eye(classes, dtype=torch.double), torch.stack([*start.values(), 0 * start[seen]])])
                for _ in range(steps):
                    y = torch.cat([y[:classes], w[classes:] @ y])
                for i in images:
                    best = int(y[row[i]].argmax())
                    start[i] = torch.zeros(classes, dtype=torch.double)
                    start[i][best] = y[row[i], best] / 5
                note(trace, changed=int(y[-1].argmax()) != int(of_texts.argmax()), forgotten=seen >= capacity)
                answers.append(1e4 * y[-1])
                seen += 1
            outputs.append(torch.stack(answers).float())
    return outputs
