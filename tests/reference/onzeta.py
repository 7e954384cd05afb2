"""OnZeta: balanced text predictions and proxies, learnt image by image."""

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
    length: int | None,
    proxy_weight: float,
    proxy_lr: float,
    sharpness: float,
    balance_lr: float,
    min_share: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given).double()
    w, rho = t.clone(), torch.zeros(len(t), dtype=torch.double)
    i = 0
    outputs = []
    with torch.no_grad():
        for images in batches:
            v = unit(given.model.encode_image(images)).double()
            if beta is not None:
                v = v - beta * unit(given.model.encode_image(given.negatives(images))).double().mean(dim=0)
            answers = []
            for d in v:
                i += 1
                p = torch.softmax(given.scale * t @ d, dim=0)
                q = p * rho.exp() / (p * rho.exp()).sum()
                rho = torch.clamp(rho - balance_lr / math.sqrt(i) * (q - min_share / len(t)), min=0)
                tau = 1 / (sharpness * given.scale)
                u = torch.softmax(w @ d / tau, dim=0)
                share = i / (i + 100) if length is None else min(i, length) / length
                b = proxy_weight * math.sqrt(share)
                answers.append(torch.log(b * u + (1 - b) * q))
                w = unit(w - proxy_lr / (math.sqrt(i) * tau) * torch.outer(u - q, d))
                note(trace, balanced=int(p.argmax()) != int(q.argmax()), learnt=int(u.argmax()) != int(q.argmax()))
            outputs.append(torch.stack(answers).float())
    return outputs
