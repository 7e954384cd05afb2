"""ROID: likelihood ratios and agreement with augmented images, weighted; weights that move back; a prior. And CMF."""

from __future__ import annotations

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
    restore: float,
    filter_noise: float | None,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    k = len(t)
    trained = image_layer_norms(given)
    source = [w.detach().clone() for w in trained]
    hidden = [w.clone() for w in source]
    variance, share = 0.0, 1.0
    q = (filter_noise or 0) * sum(w.numel() for w in trained) / 38400
    adam = Adam(trained, lr)
    mean_p = torch.full((k,), 1 / k)

    def between_0_and_1(x: Tensor) -> Tensor:
        return (x - x.min()) / (x.max() - x.min())

    outputs = []
    for images in batches:
        offset = 0.0
        if beta is not None:
            offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
        z = given.scale * (unit(given.model.encode_image(images)) - offset) @ t.T
        p = torch.softmax(z, dim=1)
        fixed = p.detach()
        cosine = (fixed @ mean_p) / (fixed.norm(dim=1) * mean_p.norm())
        diverse = between_0_and_1(1 - cosine)
        certain = between_0_and_1(-entropy(z.detach()))
        kept = [i for i in range(len(images)) if diverse[i] >= diverse.mean()]
        mean_p = 0.9 * mean_p + 0.1 * fixed.mean(dim=0)
        z_aug = unit(
            given.model.encode_image(given.strong(images[kept], shared=protocol == "reference", degrade=False))
        )
        z_aug = given.scale * (z_aug - offset) @ t.T
        loss = 0.0
        for i, augmented in zip(kept, z_aug, strict=True):
            weight = torch.exp(3 * diverse[i] * certain[i])
            clipped = p[i].clamp(max=0.99)
            ratio = -sum(clipped[c] * torch.log(clipped[c] / (1 - clipped[c]) + 1e-5) for c in range(k))
            to_plain = -(torch.softmax(augmented, dim=0) * torch.log_softmax(z[i], dim=0)).sum()
            to_augmented = -(p[i] * torch.log_softmax(augmented, dim=0)).sum()
            loss = loss + weight * (ratio + to_plain / 2 + to_augmented / 2)
        adam.step(torch.autograd.grad(loss / len(images), trained))

        target = source
        if filter_noise is not None:
            hidden = [(1 - restore) * h + restore * w0 for h, w0 in zip(hidden, source, strict=True)]
            variance = (1 - restore) ** 2 * variance + q
            share = max((1 - q) / (variance + 1 - q), 0.89)
            share = share if share < 0.9999 else 1.0
            variance = share * variance
            hidden = [share * h + (1 - share) * w.detach() for h, w in zip(hidden, trained, strict=True)]
            target = hidden
        with torch.no_grad():
            for w, w0 in zip(trained, target, strict=True):
                w.copy_((1 - restore) * w + restore * w0)
        note(trace, kept=len(kept), share=share)

        prior = fixed.mean(dim=0)
        smooth = max(1 / len(images), 1 / k) / float(prior.max())
        prior = (prior + smooth) / (1 + smooth * k)
        outputs.append(z.detach() * prior if protocol == "reference" else z.detach() + torch.log(prior))
    return outputs
