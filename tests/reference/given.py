"""What a reference is handed: an encoder of its own, class names, and the random draws that both sides share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class Given:
    model: Any
    """Encoders with `encode_image`, `encode_text`, `named_parameters`, `clip` and `tokenizer`; may be trained."""
    class_names: list[str]
    scale: float
    negatives: Callable[[Tensor], Tensor]
    """(B, 3, H, W) -> (M, 3, H, W); every call draws anew."""
    views: Callable[[Tensor, int], Tensor]
    """(B, 3, H, W), V -> (B, V, 3, H, W), the plain image first."""
    destroyed: Callable[[Tensor], Tensor]
    """(N, 3, H, W) -> (N, 3, H, W), each image with its cells permuted."""
    strong: Callable[..., Tensor] = lambda images, **how: images
    """(N, 3, H, W) -> (N, 3, H, W), strongly augmented; `shared` and `degrade` say how."""
    permutation: Callable[[int], Tensor] = torch.arange
    """n -> a random order of n things."""


def unit(x: Tensor) -> Tensor:
    return x / x.pow(2).sum(dim=-1, keepdim=True).sqrt()


def entropy(z: Tensor) -> Tensor:
    """Nats, from logits; one value per row."""
    return -(torch.softmax(z, dim=-1) * torch.log_softmax(z, dim=-1)).sum(dim=-1)


def prompts(given: Given) -> list[str]:
    return ["a photo of a " + name.replace("_", " ") + "." for name in given.class_names]


def text_embeddings(given: Given) -> Tensor:
    """t (K, D), without gradient."""
    with torch.no_grad():
        return unit(given.model.encode_text(prompts(given)))


def image_layer_norms(given: Given) -> list[Tensor]:
    """Weights and biases of the image encoder's LayerNorms, made trainable."""
    chosen = [p for name, p in given.model.named_parameters() if name.startswith("clip.visual.") and ".ln_" in name]
    for p in chosen:
        p.requires_grad_(True)
    return chosen


def text_layer_norms(given: Given) -> list[Tensor]:
    chosen = []
    for name, p in given.model.named_parameters():
        if (name.startswith("clip.transformer.") and ".ln_" in name) or name.startswith("clip.ln_final."):
            p.requires_grad_(True)
            chosen.append(p)
    return chosen


def note(trace: list[dict] | None, **facts: Any) -> None:
    """Tell a test that asked for it what went on inside."""
    if trace is not None:
        trace.append(facts)
