"""CLIPTTA: images against the texts of the batch's predicted classes, and the same for a sample of confident images."""

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
    slots: int,
    sample_size: int,
    diversity: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    adam = Adam(trained, lr, eps=1e-6)
    memory: list[dict] = []  # in the order of arrival

    def loss_of(d: Tensor) -> Tensor:
        z = given.scale * d @ t.T
        texts = torch.stack([t[int(row.argmax())] for row in z])
        similar = given.scale * d @ texts.T
        rows, columns = torch.softmax(similar, dim=1), torch.softmax(similar, dim=0)
        contrast = -(rows * rows.log()).sum(dim=1).mean()
        if protocol == "paper":
            contrast = contrast / 2 - (columns * columns.log()).sum(dim=0).mean() / 2
        mean_p = torch.softmax(z, dim=1).mean(dim=0)
        return contrast + diversity * (mean_p * mean_p.log()).sum()

    outputs = []
    for images in batches:
        negatives = None if beta is None else given.negatives(images)

        def debiased(images: Tensor, negatives: Tensor | None) -> tuple[Tensor, Tensor]:
            offset = torch.zeros_like(t[0])
            if negatives is not None:
                offset = beta * unit(given.model.encode_image(negatives)).mean(dim=0)
            return unit(given.model.encode_image(images)) - offset, offset.detach()

        for step in range(steps):
            d, offset = debiased(images, negatives)
            if step == 0:
                z = d.detach() @ t.T * (1 if protocol == "reference" else given.scale)
                p = torch.softmax(z.double(), dim=1)
                for i, image in enumerate(images):
                    own = {"x": image, "label": int(p[i].argmax()), "score": float(p[i].max()), "offset": offset}
                    memory.append(own)
                    same = [item for item in memory if item["label"] == own["label"]]
                    if len(same) > slots:
                        least = min(same, key=lambda item: item["score"])
                        memory = [item for item in memory if item is not least]
            sample: list[dict] = []
            order = [memory[j] for j in given.permutation(len(memory)).tolist()]
            for k in range(len(t)):
                sample += [item for item in order if item["label"] == k][: max(1, sample_size // len(t))]
            v = unit(given.model.encode_image(torch.stack([item["x"] for item in sample])))
            loss = loss_of(d) + loss_of(v - torch.stack([item["offset"] for item in sample]))
            note(trace, left_out=len(sample) < len(memory))
            adam.step(torch.autograd.grad(loss, trained))
        with torch.no_grad():
            outputs.append(given.scale * debiased(images, negatives)[0] @ t.T)
    return outputs
