"""CLIPArTT: ten steps per batch towards captions that name the three most probable classes of each image."""

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
    steps: int,
    candidates: int,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    start = [p.detach().clone() for p in trained]
    outputs = []
    for images in batches:
        adam = Adam(trained, lr)
        negatives = None if beta is None else given.negatives(images)
        seen = []
        for _ in range(steps):
            v, d = encode(given, images, negatives, beta)
            z = given.scale * d @ t.T
            texts = []
            for row in z.detach():
                best = row.argsort(descending=True)[:candidates].tolist()
                texts.append("a photo of a " + " or ".join(given.class_names[k] for k in best))
            with torch.no_grad():
                captions = torch.stack([unit(given.model.encode_text([text])[0]) for text in texts])
            if len(set(texts)) == 1:
                break
            seen.append(texts)
            adam.step(torch.autograd.grad(matching_loss(given, v, d, captions, protocol), trained))
        note(trace, different=len(set(seen[0])), changed=sum(a != b for a, b in zip(seen[0], seen[-1], strict=True)))
        with torch.no_grad():
            outputs.append(given.scale * encode(given, images, negatives, beta)[1] @ t.T)
            for p, value in zip(trained, start, strict=True):
                p.copy_(value)
    return outputs


def encode(given: Given, images: Tensor, negatives: Tensor | None, beta: float | None) -> tuple[Tensor, Tensor]:
    """v and d (B, D)."""
    v = unit(given.model.encode_image(images))
    return v, v if negatives is None else v - beta * unit(given.model.encode_image(negatives)).mean(dim=0)


def matching_loss(given: Given, v: Tensor, d: Tensor, texts: Tensor, protocol: str) -> Tensor:
    """Image by image, with the texts (B, D) of all images."""
    size = len(v)
    q = []
    for i in range(size):
        similar = torch.stack([(v[i] @ v[j] + texts[i] @ texts[j]) / 2 for j in range(size)])
        q.append(torch.softmax(similar / 0.01, dim=0))
    loss = torch.zeros(())
    for i in range(size):
        matches = torch.stack([given.scale * d[i] @ texts[j] for j in range(size)])
        log_p = matches - matches.logsumexp(dim=0)
        for j in range(size):
            loss = loss - (q[j][i] if protocol == "reference" else q[i][j]) * log_p[j] / size
    return loss
