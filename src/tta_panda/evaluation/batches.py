"""Labelled batches from streams, data loaders, data sets or lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tta_panda.data.dataset import UNKNOWN
from tta_panda.errors import InvalidInputError
from tta_panda.models.prepare import Images

LabelledBatch = tuple[Images, Tensor, Sequence[str | None]]
"""Images, labels (B,), and the domain of each image, None if there is only one."""

IMAGE_KEYS, LABEL_KEYS = ("image", "img", "pixel_values", "images"), ("label", "labels")
"""Keys of images and labels in dictionaries; the first one present is used."""

_EXPECTED = (
    "expected batches (images, labels), or a data set of (image, label): tuples, or dictionaries as the data sets of "
    "Hugging Face give them"
)


def labelled_batches(data: Any, classes: int, batch_size: int) -> Iterator[LabelledBatch]:
    """Yield checked batches; single images with their labels are collected into batches of `batch_size`."""
    samples: list[tuple[Any, Any, Any]] = []
    for item in _items(data):
        images, labels, domains = _unpack(item)
        if torch.is_tensor(labels) or hasattr(labels, "__array__"):
            is_sample = labels.ndim == 0
        else:
            is_sample = not isinstance(labels, Iterable) or isinstance(labels, str)
        if not is_sample:
            yield _checked(images, labels, domains, classes)
            continue
        samples.append((images, labels, domains))
        if len(samples) == batch_size:
            yield _joined(samples, classes)
            samples = []
    if samples:
        yield _joined(samples, classes)


def _items(data: Any) -> Iterable[Any]:
    """Iterate over data, including data sets that can only be indexed."""
    if hasattr(data, "__iter__"):
        return data  # type: ignore[no-any-return]
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise InvalidInputError(f"{type(data).__name__} cannot be evaluated on: {_EXPECTED}.")
    return (data[index] for index in range(len(data)))


def _unpack(item: Any) -> tuple[Any, Any, Any]:
    """Unpack an item, a batch or a single image, into images, labels and domains."""
    if isinstance(item, Mapping):
        image = next((key for key in IMAGE_KEYS if key in item), None)
        label = next((key for key in LABEL_KEYS if key in item), None)
        if image is None or label is None:
            raise InvalidInputError(
                f"A dictionary needs images as one of {', '.join(IMAGE_KEYS)}, and labels as one of "
                f"{', '.join(LABEL_KEYS)}; got {', '.join(map(str, item))}. Rename its columns."
            )
        return item[image], item[label], None
    if not isinstance(item, Sequence) or isinstance(item, str) or len(item) not in (2, 3):
        found = f"{len(item)} items" if isinstance(item, list | tuple) else type(item).__name__
        raise InvalidInputError(
            f"Items must be (images, labels) or (images, labels, domains), got {found}: {_EXPECTED}."
        )
    return item[0], item[1], item[2] if len(item) == 3 else None


def _joined(samples: Sequence[tuple[Any, Any, Any]], classes: int) -> LabelledBatch:
    images, labels, domains = map(list, zip(*samples, strict=True))
    wrong = next((each for each in labels if isinstance(each, str) or each is None), 0)
    if not isinstance(wrong, int):
        raise InvalidInputError(f"labels must be whole numbers, indices of the class names, got {wrong!r}.")
    return _checked(images, labels, None if domains[0] is None else domains, classes)


def _checked(images: Any, labels: Any, domains: Any, classes: int) -> LabelledBatch:
    labels = torch.as_tensor(labels).cpu()
    if labels.shape != (len(images),) or labels.is_floating_point():
        raise InvalidInputError(
            f"labels must be {len(images)} whole numbers, one for each image, got {labels.dtype} {tuple(labels.shape)}."
        )
    if len(labels) and not UNKNOWN <= int(labels.min()) <= int(labels.max()) < classes:
        raise InvalidInputError(
            f"Labels must lie in 0..{classes - 1} for {classes} classes, or be {UNKNOWN} for images of none of them; "
            f"got {int(labels.min())}..{int(labels.max())}."
        )
    domains = [None] * len(images) if domains is None else list(domains)
    if len(domains) != len(images):
        raise InvalidInputError(f"Expected {len(images)} domain names, one for each image, got {len(domains)}.")
    return images, labels.long(), domains
