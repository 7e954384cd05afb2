"""Ramen: for every image a step along signs, of the gradients of its nearest earlier images of every class."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.given import Given, entropy, image_layer_norms, note, text_embeddings, unit


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    slots: int,
    neighbours: int,
    sharpness: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    start = [w.detach().clone() for w in trained]
    queues: list[list[tuple]] = [[] for _ in t]  # per class, the oldest first: (v, gradients, entropy)
    outputs = []
    for images in batches:
        offset = 0.0
        if beta is not None:
            with torch.no_grad():
                offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
        features, forgotten = [], False
        for image in images:
            v = unit(given.model.encode_image(image[None]))[0]
            z = given.scale * t @ (v - offset)
            h = entropy(z)
            gradients = [g.half().float() for g in torch.autograd.grad(h, trained)]
            queue = queues[int(z.argmax())]
            queue.append((v.detach(), gradients, float(h.detach())))
            if len(queue) > slots:
                queue.pop(0)
                forgotten = True
            features.append(v.detach())
        answers = []
        for image, v in zip(images, features, strict=True):
            sums = [torch.zeros_like(w) for w in trained]
            for queue in queues:
                by_distance = sorted((float((v - other).norm()), i) for i, (other, _, _) in enumerate(queue))
                for distance, i in by_distance[:neighbours]:
                    _, gradients, h = queue[i]
                    for total, g in zip(sums, gradients, strict=True):
                        total += math.exp(-h) * math.exp(-sharpness * distance) * g
            smallest = min(float(total[total != 0].abs().min()) for total in sums)
            note(trace, forgotten=forgotten, smallest_sum=smallest)
            with torch.no_grad():
                for w, w0, total in zip(trained, start, sums, strict=True):
                    w.copy_(w0 - lr * torch.sign(total))
                z = given.scale * t @ (unit(given.model.encode_image(image[None]))[0] - offset)
                for w, w0 in zip(trained, start, strict=True):
                    w.copy_(w0)
            answers.append(z)
        outputs.append(torch.stack(answers))
    return outputs
