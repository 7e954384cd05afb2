"""BoostAdapter: TDA's caches, and a copy of one with views of the image at hand."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.given import Given, entropy, note, text_embeddings, unit
from reference.tda import put


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    views: int,
    keep: float,
    boost_slots: int,
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
            offset = torch.zeros_like(t[0])
            if beta is not None:
                offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
            answers = []
            for image_views in given.views(images, views):
                f = unit(given.model.encode_image(image_views))
                z = given.scale * (f - offset) @ t.T
                h = entropy(z)
                p = torch.softmax(z[0], dim=0)
                put(positive[int(z[0].argmax())], (float(h[0]), f[0]), slots)
                copy = [list(own) for own in positive]
                done = []
                for j in h.sort(stable=True).indices[: max(1, int(keep * views))]:
                    done.append(put(copy[int(z[j].argmax())], (float(h[j]), f[j]), slots + boost_slots))
                own = negative[int(z[0].argmax())]
                if min_entropy < float(h[0]) / math.log2(len(t)) < max_entropy:
                    if protocol == "reference" and len(own) == negative_slots:
                        del own[0]
                    done.append(put(own, (float(h[0]), f[0], p), negative_slots))
                note(trace, what=done)
                answer = z[0].clone()
                for k in range(len(t)):
                    for _, other in copy[k]:
                        answer[k] += alpha * torch.exp(-sharpness * (1 - f[0] @ other))
                    for _, other, theirs in negative[k]:
                        mask = (theirs > min_probability) & (theirs < 1)
                        answer -= negative_alpha * torch.exp(-negative_sharpness * (1 - f[0] @ other)) * mask
                answers.append(answer)
            outputs.append(torch.stack(answers))
    return outputs
