"""Latte: a cache of certain images, read image by image; and what clients send each other."""

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
    entropy_weight: float,
    trace: list[dict] | None = None,
    external: list[list[tuple]] | None = None,
    local: list[list[tuple]] | None = None,
) -> list[Tensor]:
    """`external` and `local` hold (normalised entropy, feature) by class; `local` is changed in place."""
    t = text_embeddings(given)
    classes = range(len(t))
    local = [[] for _ in classes] if local is None else local
    external = [[] for _ in classes] if external is None else external
    outputs = []
    with torch.no_grad():
        for images in batches:
            v = unit(given.model.encode_image(images))
            offset = torch.zeros_like(v[0])
            if beta is not None:
                offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
            answers = []
            for x in v:
                z = given.scale * t @ (x - offset)
                h, own = float(entropy(z)) / math.log(len(t)), local[int(z.argmax())]
                if len(own) < slots:
                    own.append((h, x))
                else:
                    worst = max(range(slots), key=lambda j: own[j][0])
                    if h < own[worst][0]:
                        own[worst] = (h, x)
                answer = z.clone()
                lengths = []
                for k in classes:
                    merged = sorted(local[k] + external[k], key=lambda entry: entry[0])[:slots]
                    w = torch.zeros_like(x)
                    for h_j, m in merged:
                        w += torch.exp(sharpness * (x @ m - 1)) * math.exp(-entropy_weight * h_j) * m
                    lengths.append(float(w.norm()))
                    if lengths[-1] > 1e-3:
                        answer[k] += alpha * given.scale * x @ unit(w)
                note(trace, lengths=lengths)
                answers.append(answer)
            outputs.append(torch.stack(answers))
    return outputs


def exchange(given: Given, locals_: list[list[list[tuple]]], count: int, entropy_weight: float) -> list[list[list]]:
    """For each client and class, what it receives from the others."""
    t = text_embeddings(given)
    sent = []
    for local in locals_:
        own = []
        for entries in local:
            total = sum((math.exp(-entropy_weight * h) * m for h, m in entries), torch.zeros_like(t[0]))
            own.append(unit(total) if entries else None)
        sent.append(own)
    received = []
    for i in range(len(sent)):
        by_class = []
        for k in range(len(t)):
            mine = torch.zeros_like(t[0]) if sent[i][k] is None else sent[i][k]
            others = [sent[j][k] for j in range(len(sent)) if j != i and sent[j][k] is not None]
            others.sort(key=lambda u: -float(u @ mine))
            by_class.append([(float(entropy(given.scale * t @ u)) / math.log(len(t)), u) for u in others[:count]])
        received.append(by_class)
    return received
