"""TDA: two caches, written and read image by image."""

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
    alpha: float,
    sharpness: float,
    negative_slots: int,
    negative_alpha: float,
    negative_sharpness: float,
    min_entropy: float,
    max_entropy: float,
    min_probability: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    positive = [[] for _ in t]  # per class: (entropy, key)
    negative = [[] for _ in t]  # per class: (entropy, key, probabilities)
    outputs = []
    with torch.no_grad():
        for images in batches:
            v = unit(given.model.encode_image(images))
            offset = torch.zeros_like(v[0])
            if beta is not None:
                offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
            answers = []
            for key in v:
                z = given.scale * t @ (key - offset)
                p = torch.softmax(z, dim=0)
                h, label = float(entropy(z)), int(z.argmax())
                done = [put(positive[label], (h, key), slots)]
                if min_entropy < h / math.log2(len(t)) < max_entropy:
                    done.append(put(negative[label], (h, key, p), negative_slots))
                note(trace, what=done)
                answer = z.clone()
                for k in range(len(t)):
                    for _, other in positive[k]:
                        answer[k] += alpha * torch.exp(-sharpness * (1 - key @ other))
                    for _, other, theirs in negative[k]:
                        mask = (theirs > min_probability) & (theirs < 1)
                        answer -= negative_alpha * torch.exp(-negative_sharpness * (1 - key @ other)) * mask
                answers.append(answer)
            outputs.append(torch.stack(answers))
    return outputs


def put(cache: list[tuple], item: tuple, slots: int) -> str:
    if len(cache) < slots:
        cache.append(item)
        return "filled"
    worst = max(range(slots), key=lambda j: cache[j][0])
    if item[0] < cache[worst][0]:
        cache[worst] = item
        return "replaced"
    return "nothing"
