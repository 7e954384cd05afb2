"""WATT: the weights after training with each of eight prompts are averaged, round after round."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.clipartt import encode, matching_loss
from reference.given import Given, image_layer_norms, note, unit
from reference.optimisers import Adam

TEMPLATES = (
    "a photo of a {}",
    "itap of a {}",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    rounds: int,
    steps: int,
    parallel: bool,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    with torch.no_grad():
        t = [unit(given.model.encode_text([each.format(name) for name in given.class_names])) for each in TEMPLATES]
    t_mean = unit(sum(t) / len(t))
    trained = image_layer_norms(given)

    def load(values: list[Tensor]) -> None:
        with torch.no_grad():
            for p, value in zip(trained, values, strict=True):
                p.copy_(value)

    initial = [p.detach().clone() for p in trained]
    outputs = []
    for images in batches:
        load(initial)
        mean, adam = initial, Adam(trained, lr)
        negatives = None if beta is None else given.negatives(images)
        predicted = []
        for number in range(rounds):
            after = []
            for texts in t:
                if parallel:
                    load(mean)
                    adam = Adam(trained, lr) if number == 0 else adam
                for _ in range(steps):
                    v, d = encode(given, images, negatives, beta)
                    label = (d @ texts.T).argmax(dim=1).tolist()
                    if len(set(label)) == 1:
                        break  # all texts match all images equally: there is no gradient
                    own = torch.stack([texts[k] for k in label])
                    adam.step(torch.autograd.grad(matching_loss(given, v, d, own, protocol), trained))
                    predicted.append(label)
                after.append([p.detach().clone() for p in trained])
            mean = [sum(each) / len(each) for each in zip(*after, strict=True)]
            load(mean)
        note(trace, different=len({tuple(label) for label in predicted}))
        with torch.no_grad():
            outputs.append(given.scale * encode(given, images, negatives, beta)[1] @ t_mean.T)
    load(initial)
    return outputs
