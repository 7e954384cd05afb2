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
    step = _reference_with_panda if protocol == "reference" and beta is not None else _paper

    outputs = []
    for images in batches:
        z, h, plpd, factor = step(given, images, t, beta, filter_margin, e0, (entropy_weight, plpd_weight))
        outputs.append(z.detach())
        kept = [i for i in range(len(h)) if plpd[i] > plpd_threshold]
        note(trace, images=len(images), confident=len(h), kept=len(kept))
        if kept:
            loss = sum(factor[i] * h[i] for i in kept) / len(kept)
            adam.step(torch.autograd.grad(loss, trained))
    return outputs


def _paper(given, images, t, beta, filter_margin, e0, weights):
    """Logits of all images; entropy, PLPD and weight of those that pass the first filter."""
    d = unit(given.model.encode_image(images))
    offset = torch.zeros_like(d[0])
    if beta is not None:
        offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
    z = given.scale * (d - offset) @ t.T
    h = entropy(z)
    confident = h.detach() < filter_margin
    if not confident.any():
        return z, [], [], []
    with torch.no_grad():
        destroyed = unit(given.model.encode_image(given.destroyed(images[confident]))) - offset
        p_destroyed = torch.softmax(given.scale * destroyed @ t.T, dim=1)
        p = torch.softmax(z[confident], dim=1)
        plpd = []
        for i in range(len(p)):
            c = int(p[i].argmax())
            plpd.append(float(p[i, c] - p_destroyed[i, c]))
    h = h[confident]
    fixed_h = h.detach().tolist()
    factor = [weights[0] * math.exp(e0 - fixed_h[i]) + weights[1] * math.exp(plpd[i]) for i in range(len(plpd))]
    return z, h, plpd, factor


def _reference_with_panda(given, images, t, beta, filter_margin, e0, weights):
    """Filtered and answered by plain logits; what is learned comes from debiased ones, weights included."""
    v = unit(given.model.encode_image(images))
    raw = given.scale * v @ t.T
    confident = entropy(raw.detach()) < filter_margin
    if not confident.any():
        return raw, [], [], []
    n = unit(given.model.encode_image(given.negatives(images[confident])))
    p_negative = torch.softmax((given.scale * n @ t.T).mean(dim=0), dim=0)
    z = given.scale * (v[confident] - beta * n.mean(dim=0)) @ t.T
    h = entropy(z)
    p = torch.softmax(z, dim=1)
    plpd = []
    for i in range(len(p)):
        c = int(p[i].argmax())
        plpd.append(p[i, c] - p_negative[c])
    factor = [weights[0] * torch.exp(e0 - h[i]) + weights[1] * torch.exp(plpd[i]) for i in range(len(plpd))]
    return raw, h, plpd, factor
