"""3.5 DeYO: images whose prediction falls when the object is taken apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.given import Given, entropy, image_layer_norms, note, text_embeddings, unit
from reference.optimisers import Adam


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    filter_margin: float,
    weight_margin: float,
    plpd_threshold: float,
    entropy_weight: float,
    plpd_weight: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    trained = image_layer_norms(given)
    adam = Adam(trained, lr)
    e0 = weight_margin * math.log(len(given.class_names))
    detach = protocol != "reference"

    outputs = []
    for images in batches:
        if protocol == "reference" and beta is not None:
            answer, z, p_other = _against_negatives(given, images, t, beta, filter_margin)
        else:
            answer, z, p_other = _against_destroyed(given, images, t, beta, filter_margin)
        outputs.append(answer.detach())
        h = entropy(z)
        p = torch.softmax(z, dim=1)
        labels = z.argmax(dim=1).tolist()
        plpd = [p[i, c] - p_other[i, c] for i, c in enumerate(labels)]
        if detach:
            fixed = [(math.exp(e0 - float(h[i].detach())), math.exp(float(plpd[i].detach()))) for i in range(len(z))]
        else:
            fixed = [(torch.exp(e0 - h[i]), torch.exp(plpd[i])) for i in range(len(z))]
        factor = [entropy_weight * of_entropy + plpd_weight * of_plpd for of_entropy, of_plpd in fixed]
        kept = [i for i in range(len(h)) if plpd[i] > plpd_threshold]
        note(trace, images=len(images), confident=len(h), kept=len(kept))
        if kept:
            loss = sum(factor[i] * h[i] for i in kept) / len(kept)
            adam.step(torch.autograd.grad(loss, trained))
    return outputs


def _against_destroyed(given, images, t, beta, filter_margin):
    """Logits of all images; logits of those that pass the first filter, and their probabilities taken apart."""
    offset = torch.zeros_like(t[0])
    v = unit(given.model.encode_image(images))
    if beta is not None:
        offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
    z = given.scale * (v - offset) @ t.T
    confident = entropy(z.detach()) < filter_margin
    if not confident.any():
        return z, z[:0], z[:0]
    with torch.no_grad():
        destroyed = unit(given.model.encode_image(given.destroyed(images[confident]))) - offset
    return z, z[confident], torch.softmax(given.scale * destroyed @ t.T, dim=1).detach()


def _against_negatives(given, images, t, beta, filter_margin):
    """Filtered and answered by raw logits; learned from debiased ones, with the negatives in the place of x'."""
    v = unit(given.model.encode_image(images))
    raw = given.scale * v @ t.T
    confident = entropy(raw.detach()) < filter_margin
    if not confident.any():
        return raw, raw[:0], raw[:0]
    with torch.no_grad():
        n = unit(given.model.encode_image(given.negatives(images[confident])))
    p_negative = torch.softmax((given.scale * n @ t.T).mean(dim=0), dim=0)
    z = given.scale * (v[confident] - beta * n.mean(dim=0)) @ t.T
    return raw, z, p_negative.expand(len(z), -1)
