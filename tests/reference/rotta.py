"""RoTTA: a student learns from a balanced memory of images, and its teacher, which follows slowly, predicts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reference.given import Given, entropy, image_layer_norms, note, text_embeddings, unit
from reference.optimisers import Adam


def enter(memory: list[list[dict]], label: int, new: dict, capacity: int) -> str:
    """Add an image to its class, if there is room or another one can go, and say what was done. All grow older."""

    def score(item: dict) -> float:
        return 1 / (1 + math.exp(-item["age"] / capacity)) + item["h"] / math.log(len(memory))

    def make_room() -> str:
        sizes = [len(own) for own in memory]
        if sizes[label] >= capacity / len(memory):
            where, what = [label], "own"
        elif sum(sizes) < capacity:
            return "added"
        else:
            where, what = [k for k, size in enumerate(sizes) if size == max(sizes)], "largest"
        highest, k, j = max((score(item), k, j) for k in where for j, item in enumerate(memory[k]))
        if not highest > score(new):
            return "dropped"
        del memory[k][j]
        return what

    what = make_room()
    if what != "dropped":
        memory[label].append(new)
    for item in [item for own in memory for item in own]:
        item["age"] += 1
    return what


def run(
    given: Given,
    batches: list[Tensor],
    *,
    beta: float | None = None,
    protocol: str = "paper",
    lr: float,
    capacity: int,
    decay: float,
    trace: list[dict] | None = None,
) -> list[Tensor]:
    t = text_embeddings(given)
    student = image_layer_norms(given)
    teacher = [w.detach().clone() for w in student]
    adam = Adam(student, lr)
    memory: list[list[dict]] = [[] for _ in t]
    instances = 0

    def by_teacher(images: Tensor) -> Tensor:
        own = [w.detach().clone() for w in student]
        put(teacher)
        with torch.no_grad():
            v = given.model.encode_image(images)
        put(own)
        return v

    def put(values: list[Tensor]) -> None:
        with torch.no_grad():
            for w, value in zip(student, values, strict=True):
                w.copy_(value)

    outputs = []
    for images in batches:
        offset = torch.zeros_like(t[0])
        if beta is not None:
            offset = beta * unit(by_teacher(given.negatives(images))).mean(dim=0)
        z = given.scale * (unit(by_teacher(images)) - offset) @ t.T
        outputs.append(z)
        h = entropy(z)
        done = set()
        for i, image in enumerate(images):
            label = int(z[i].argmax())
            done.add(enter(memory, label, {"x": image, "h": float(h[i]), "age": 0, "offset": offset}, capacity))
            instances += 1
            if instances % capacity:
                continue

            items = sorted((item for own in memory for item in own), key=lambda item: -item["age"])
            x = torch.stack([item["x"] for item in items])
            offsets = torch.stack([item["offset"] for item in items])
            target = torch.softmax(given.scale * (unit(by_teacher(x)) - offsets) @ t.T, dim=1)
            strong = given.strong(x, shared=protocol == "reference")
            log_q = torch.log_softmax(given.scale * (unit(given.model.encode_image(strong)) - offsets) @ t.T, dim=1)
            loss = 0.0
            for item, p, lq in zip(items, target, log_q, strict=True):
                age = item["age"] / capacity
                loss = loss - math.exp(-age) / (1 + math.exp(-age)) * (p * lq).sum()
            adam.step(torch.autograd.grad(loss / len(items), student))
            teacher = [decay * old + (1 - decay) * w.detach() for old, w in zip(teacher, student, strict=True)]
        note(trace, what=done)
    return outputs
