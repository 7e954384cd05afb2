"""3.10 BAT: both encoders, with pseudo classes pulled to their texts and away from each other."""

from __future__ import annotations

import torch
from torch import Tensor

from reference.given import Given, entropy, image_layer_norms, note, prompts, text_layer_norms, unit
from reference.optimisers import Adam


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    trained = image_layer_norms(given) + text_layer_norms(given)
    adamw = Adam(trained, lr, decay=0.01)
    outputs = []
    for images in batches:
        negatives = None if beta is None else given.negatives(images)
        t = unit(given.model.encode_text(prompts(given)))
        f = given.model.encode_image(images)
        d = unit(f)
        if negatives is not None:
            d = d - beta * unit(given.model.encode_image(negatives)).mean(dim=0)
        z = given.scale * d @ t.T

        label = z.argmax(dim=1).tolist()
        present = sorted(set(label))
        mean = {k: sum(f[i] for i in range(len(f)) if label[i] == k) / label.count(k) for k in present}
        align = sum(mean[k] @ t[k] for k in present) / len(present)
        separate = 0.0
        for k in present:
            for other in present:
                if k != other:
                    separate = separate + 1 - unit(mean[k]) @ unit(mean[other])
        loss = entropy(z).mean() - align - separate
        note(trace, present=len(present))
        adamw.step(torch.autograd.grad(loss, trained))

        if protocol == "reference" and beta is not None:  # new image features, the texts of before
            with torch.no_grad():
                d = unit(given.model.encode_image(images))
                d = d - beta * unit(given.model.encode_image(negatives)).mean(dim=0)
                z = given.scale * d @ t.T
        outputs.append(z.detach())
    return outputs
