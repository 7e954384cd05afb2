"""3.9 DMN-ZS: a memory per class, written and read image by image."""

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
    slots: int,
    alpha: float,
    sharpness: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    memory = [[] for _ in range(len(t))]  # per class: (entropy, feature)
    outputs = []
    with torch.no_grad():
        for images in batches:
            v = unit(given.model.encode_image(images))
            offset = torch.zeros_like(v[0])
            if beta is not None:
                offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
            answers = []
            for i in range(len(images)):
                d = v[i] - offset
                z = given.scale * t @ d
                query = v[i] if protocol == "reference" else unit(d)  # what the memory holds and is asked with

                h = float(entropy(z))
                own = memory[int(z.argmax())]
                what = "nothing"
                if len(own) < slots:
                    own.append((h, query))
                    what = "filled"
                else:
                    worst = max(range(slots), key=lambda j: own[j][0])
                    if h < own[worst][0]:
                        own[worst] = (h, query)
                        what = "replaced"
                note(trace, what=what)

                w = []
                for k in range(len(t)):
                    held = [feature for _, feature in memory[k]]
                    if protocol != "reference":
                        held = [t[k], *held]
                    if not held:
                        w.append(torch.zeros_like(d))
                        continue
                    w.append(unit(sum(torch.exp(-sharpness * (1 - query @ m)) * m for m in held)))
                p_text = torch.softmax(z, dim=0)
                p_memory = torch.softmax(given.scale * torch.stack(w) @ query, dim=0)
                p = p_text + alpha * p_memory
                answers.append(torch.log(p / p.sum()))
            outputs.append(torch.stack(answers))
    return outputs
