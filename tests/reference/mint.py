"""Mint: one step per batch from the first weights, with the mean of all gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.given import Given, image_layer_norms, note, text_embeddings, unit
from reference.optimisers import Adam


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    prior: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    start = [p.detach().clone() for p in trained]
    before: list[tuple[int, Tensor]] = []  # (class, v) of all images so far
    after: list[tuple[int, Tensor]] = []
    gradients: list[list[Tensor]] = []

    def encode(images: Tensor, negatives: Tensor | None) -> tuple[Tensor, Tensor]:
        v = unit(given.model.encode_image(images))
        if negatives is None:
            return v, v
        return v, v - beta * unit(given.model.encode_image(negatives)).mean(dim=0)

    outputs = []
    for images in batches:
        negatives = None if beta is None else given.negatives(images)
        v, d = encode(images, negatives)
        label = (given.scale * d @ t.T).argmax(dim=1).tolist()
        before += [(k, x) for k, x in zip(label, v.detach(), strict=True)]
        c = torch.stack([x for _, x in before]).mean(dim=0)
        own = {k: torch.stack([x for other, x in before if other == k]).mean(dim=0) for k in set(label)}
        loss = 0.0
        for k, x in zip(label, v, strict=True):
            weight = 1 / (len(set(label)) * label.count(k))
            loss = loss + weight * ((x - own[k]) ** 2).sum() - weight * ((x - c) ** 2).sum()
        gradients.append(list(torch.autograd.grad(loss, trained)))
        Adam(trained, lr).step([sum(each) / len(gradients) for each in zip(*gradients, strict=True)])
        with torch.no_grad():
            v, d = encode(images, negatives)
            predicted = (given.scale * d @ t.T).argmax(dim=1).tolist()
            after += list(zip(predicted, v, strict=True))
            note(trace, present=len(set(label)), moved=sum(a != b for a, b in zip(label, predicted, strict=True)))
            r = len(after) / (prior + len(after))
            w = []
            for k in range(len(t)):
                mine = [x for other, x in after if other == k]
                mean = sum(mine) / len(mine) if mine else t[k]
                if protocol == "reference" and not mine:
                    mean = torch.zeros_like(t[k])
                w.append(unit((1 - r) * t[k] + r * mean))
            outputs.append(given.scale * d @ torch.stack(w).T)
            for p, value in zip(trained, start, strict=True):
                p.copy_(value)
    return outputs
