"""SubTTA: a step that turns the image features' subspace towards the texts', and one that separates classes in it."""

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
    momentum: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = unit(text_embeddings(given))  # an average over prompts, here of one; their directions magnify its rounding
    k, size = t.shape
    of_texts = torch.cov(t.double().T)
    r = k - 2  # without the first direction, and without the one in which centred texts do not differ
    basis = torch.linalg.eigh(of_texts).eigenvectors.flip(1)[:, 1 : 1 + r]  # (D, r)
    project = basis @ basis.T
    trained = image_layer_norms(given)
    adamw = Adam(trained, lr, decay=0.01)
    previous = of_texts

    def encode(images: Tensor, negatives: Tensor | None) -> tuple[Tensor, Tensor]:
        v = unit(given.model.encode_image(images))
        if negatives is None:
            return v, v
        return v, v - beta * unit(given.model.encode_image(negatives)).mean(dim=0)

    def in_subspace(v: Tensor, d: Tensor) -> Tensor:
        length = (v.double() @ project).pow(2).sum(dim=1, keepdim=True).sqrt()
        return given.scale * (d.double() @ project / length) @ t.double().T

    outputs = []
    for images in batches:
        negatives = None if beta is None else given.negatives(images)
        v, _ = encode(images, negatives)
        now = torch.cov(v.double().T) + 1e-6 * torch.eye(size, dtype=torch.double)
        c = momentum * previous + (1 - momentum) * now
        previous = c.detach()
        directions = torch.linalg.eigh(c).eigenvectors.flip(1)[:, 1 : 1 + r]
        overlap = (directions.T @ basis).pow(2).sum()
        adamw.step(torch.autograd.grad(-overlap / (r * (1 - momentum)), trained))

        v, d = encode(images, negatives)
        label = in_subspace(v, d).argmax(dim=1).tolist()
        p = unit(v.double() @ project)
        loss = 0.0
        for i, own in enumerate(label):
            mean = sum(p[j] for j in range(len(p)) if label[j] == own) / label.count(own)
            loss = loss + ((p[i] - mean) ** 2).sum() - ((p[i] - p.mean(dim=0)) ** 2).sum()
        note(trace, overlap=float(overlap.detach()) / r, present=len(set(label)))
        adamw.step(torch.autograd.grad(loss / len(p), trained))

        with torch.no_grad():
            v, d = encode(images, negatives)
            z = given.scale * d @ t.T if protocol == "reference" else in_subspace(v, d).float()
            outputs.append(z)
    return outputs
