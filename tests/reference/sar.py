"""3.4 SAR: a sharpness-aware step on the reliable images, and a reset once the model is too sure of itself."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.given import Given, entropy, image_layer_norms, note, text_embeddings, unit
from reference.optimisers import Adam, global_norm


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    margin: float,
    rho: float,
    reset_constant: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    initial = [w.detach().clone() for w in trained]
    adam = Adam(trained, lr)
    e0 = margin * math.log(len(given.class_names))
    ema = None

    def logits(images: Tensor, negatives: Tensor | None) -> Tensor:
        d = unit(given.model.encode_image(images))
        if negatives is not None:
            d = d - beta * unit(given.model.encode_image(negatives)).mean(dim=0)
        return given.scale * d @ t.T

    outputs = []
    for images in batches:
        negatives = None if beta is None else given.negatives(images)
        z = logits(images, negatives)
        outputs.append(z.detach())
        h = entropy(z)
        kept = h.detach() < e0
        facts = {"images": len(images), "kept": int(kept.sum()), "kept_twice": 0, "ema": None, "reset": False}
        if not kept.any():
            note(trace, **facts)
            continue

        # Uphill along the gradient, by rho in all.
        g = torch.autograd.grad(h[kept].mean(), trained)
        length = global_norm(g)
        before = [w.detach().clone() for w in trained]
        with torch.no_grad():
            for w, gradient in zip(trained, g, strict=True):
                w.copy_(w + rho * gradient / (length + 1e-12))

        # The gradient up there, applied down here.
        if protocol == "reference" and beta is not None:  # two draws per batch, each from all of its images
            negatives = given.negatives(images)
        h2 = entropy(logits(images[kept], negatives))
        kept_twice = h2.detach() < e0
        facts["kept_twice"] = int(kept_twice.sum())
        g2 = None
        if kept_twice.any():
            loss2 = h2[kept_twice].mean()
            g2 = torch.autograd.grad(loss2, trained)
        with torch.no_grad():
            for w, value in zip(trained, before, strict=True):
                w.copy_(value)
        if g2 is not None:
            adam.step(g2)
            value2 = float(loss2.detach())
            ema = value2 if ema is None else 0.9 * ema + 0.1 * value2
            facts["ema"] = ema
            if ema < reset_constant:
                facts["reset"] = True
                with torch.no_grad():
                    for w, value in zip(trained, initial, strict=True):
                        w.copy_(value)
                adam = Adam(trained, lr)
                ema = None
        note(trace, **facts)
    return outputs
