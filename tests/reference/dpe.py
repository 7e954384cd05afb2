"""DPE: prototypes of texts and images, and a step of AdamW for every image, in float64."""

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
    views: int,
    keep: float,
    slots: int,
    alpha: float,
    sharpness: float,
    alignment: float,
    lr: float,
    max_entropy: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given).double()
    classes, n = len(t), 0
    cache: list[list[tuple]] = [[] for _ in t]  # per class: (entropy, feature)
    outputs = []
    for images in batches:
        offset = torch.zeros_like(t[0])
        with torch.no_grad():
            encoded = [unit(given.model.encode_image(each)).double() for each in given.views(images, views)]
            if beta is not None:
                offset = beta * unit(given.model.encode_image(given.negatives(images))).double().mean(dim=0)
        answers = []
        for f in encoded:
            z = given.scale * (f - offset) @ unit(t).T
            kept = f[entropy(z.float()).sort(stable=True).indices[: max(1, int(keep * views))]]
            z = given.scale * (kept - offset) @ unit(t).T
            h = entropy(torch.softmax(z, dim=1).mean(dim=0).log())
            own = cache[int(z.mean(dim=0).argmax())]
            own.append((float(h), kept.mean(dim=0)))
            own.sort(key=lambda entry: entry[0])
            del own[slots:]

            present = [k for k in range(classes) if cache[k]]
            m = torch.stack([sum(x for _, x in cache[k]) / len(cache[k]) for k in present])
            used = kept.mean(dim=0, keepdim=True) if protocol == "reference" else kept
            residual_t = torch.zeros_like(t, requires_grad=True)
            residual_m = torch.zeros_like(m, requires_grad=True)

            def logits(x: Tensor, new_t: Tensor, new_m: Tensor, offset=offset, present=present) -> Tensor:
                rows = []
                for each in x:
                    row = given.scale * new_t @ (each - offset)
                    extra = [torch.zeros((), dtype=torch.double) for _ in range(classes)]
                    for k, prototype in zip(present, new_m, strict=True):
                        extra[k] = alpha * torch.exp(-sharpness * (1 - each @ prototype))
                    rows.append(row + torch.stack(extra))
                return torch.stack(rows)

            new_t, new_m = unit(t + residual_t), unit(m + residual_m)
            p = torch.softmax(logits(used, new_t, new_m), dim=1).mean(dim=0)
            loss = -(p * p.log()).sum()
            for i in range(len(present)):
                similar = unit(m[i] + residual_m[i] - offset) @ new_t[present].T / 0.01
                loss = loss - alignment * torch.log_softmax(similar, dim=0)[i] / len(present)
            optimizer = torch.optim.AdamW([residual_t, residual_m], lr=lr, eps=1e-3, weight_decay=0.1)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                new_t, new_m = unit(t + residual_t), unit(m + residual_m)
                answer = logits(f[:1], new_t, new_m)[0]
                moves = float(entropy(answer)) / math.log2(classes) < max_entropy
                if moves:
                    n += 1
                    t = (n * t + new_t) / (n + 1)
            note(trace, moves=moves)
            answers.append(answer.float())
        outputs.append(torch.stack(answers))
    return outputs
