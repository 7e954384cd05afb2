"""3.6 TPT: for every image alone, one step on the four words before the class name."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.given import Given, entropy, note, prompts, unit
from reference.optimisers import first_adamw_step

CONTEXT = "a photo of a"


def initial_context(given: Given) -> Tensor:
    """(4, width): the token embeddings of the words."""
    ids = given.model.tokenizer([CONTEXT])[0]  # [SOS] a photo of a [EOS] 0 0 ...
    return given.model.clip.token_embedding.weight[ids[1:5]].detach().clone()


def encode_prompts(given: Given, context: Tensor) -> Tensor:
    """(K, D), raw: the class prompts with `context` in place of the four words."""
    clip = given.model.clip
    ids = given.model.tokenizer(prompts(given))  # (K, 77)
    words = clip.token_embedding(ids)
    rows = []
    for k in range(len(ids)):
        x = torch.cat([words[k, :1], context, words[k, 5:]]) + clip.positional_embedding
        x = clip.transformer(x[None], attn_mask=clip.attn_mask)[0]
        x = clip.ln_final(x)
        rows.append(x[ids[k].argmax()] @ clip.text_projection)
    return torch.stack(rows)


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    views: int,
    keep: float,
    dispersion: float = 0.0,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    outputs = []
    for images in batches:
        offset = 0.0
        if beta is not None:
            with torch.no_grad():
                offset = beta * unit(given.model.encode_image(given.negatives(images))).mean(dim=0)
        answers = []
        for image_views in given.views(images, views):
            with torch.no_grad():
                d = unit(given.model.encode_image(image_views)) - offset
            if protocol == "reference":
                d = unit(d)
            context = initial_context(given).requires_grad_(True)
            texts = unit(encode_prompts(given, context))
            z = given.scale * d @ texts.T
            count = max(1, int(keep * views))
            rising = torch.sort(entropy(z.detach()), stable=True)
            kept = rising.indices[:count]
            p = torch.softmax(z[kept], dim=1).mean(dim=0)
            loss = -(p * p.log()).sum()
            if dispersion:
                loss = loss - dispersion * ((texts - texts.mean(dim=0)) ** 2).sum(dim=1).sqrt().mean()
            (g,) = torch.autograd.grad(loss, [context])
            gap = float(rising.values[count] - rising.values[count - 1]) if count < views else math.inf
            note(trace, smallest_gradient=float(g.abs().min()), gap=gap)
            with torch.no_grad():
                new_context = first_adamw_step(context, g, lr)
                answers.append(given.scale * unit(encode_prompts(given, new_context)) @ d[0])
        outputs.append(torch.stack(answers))
    return outputs
