"""Compare corrections of CLIP, and betas of Panda, over kinds of streams; nothing is trained.

python scripts/compare_beta.py                                # the ten validation symbols
python scripts/compare_beta.py --classes 200 --images 1000    # 200 other symbols
python scripts/compare_beta.py --model ViT-B-32-quickgelu:openai --data cifar10-c --data-root data

Prints the gain in accuracy over plain CLIP, in points, for every correction and kind of stream: the mean over all
streams of the kind and, in brackets, the worst one. Defaults are chosen by these tables, so do not run it on
`glyphs-c`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tta_panda import CLIP, Panda, load_data, load_model
from tta_panda.data.corruptions import CORRUPTIONS, corrupt
from tta_panda.data.glyphs import BENCHMARK_CLASSES, draw_glyphs, symbols
from tta_panda.data.order import Order
from tta_panda.data.stream import arrange
from tta_panda.methods import create_method
from tta_panda.methods.features import Encoded, isolated
from tta_panda.models import Classifier, make_classifier

Indices = NDArray[np.int64]
Rng = np.random.Generator
Batches = list[Indices]

CORRECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"panda, beta {beta}": ("clip+panda", {"beta": beta}) for beta in (0.2, 0.4, 0.8, "auto")},
    **{name: (f"clip+{name}", {}) for name in ("center", "running", "level", "panda+level")},
}


class Kind(NamedTuple):
    """A kind of streams within one corruption."""

    order: str  # as `--order` takes it
    batch_size: int = 100
    limit: int | None = None


KINDS = {
    "shuffled": Kind("shuffled"),
    "B = 10": Kind("shuffled", 10),
    "B = 1": Kind("shuffled", 1, 300),
    "correlated .1": Kind("correlated:0.1"),
    "sorted": Kind("correlated:0"),
    "sorted, B = 10": Kind("correlated:0", 10),
    "label shift .1": Kind("label_shift:0.1"),
    "label shift .3": Kind("label_shift:0.3"),
}


def split(order: Indices, size: int) -> Batches:
    return [order[start : start + size] for start in range(0, len(order), size)]


def streams(labels: Indices, domains: int, rng: Rng) -> Iterator[tuple[str, Batches, tuple[int, ...]]]:
    """Yield (kind, batches, classes) of every stream; indices count the images of all domains in sequence."""
    size, every = len(labels), tuple(range(labels.max() + 1))
    for name, kind in KINDS.items():
        for domain in range(domains):
            chosen = arrange(Order.parse(kind.order), labels, rng, kind.batch_size)[: kind.limit]
            yield name, split(domain * size + chosen, kind.batch_size), every
    yield "continual", [part for d in range(domains) for part in split(d * size + rng.permutation(size), 100)], every
    yield "mixed", split(rng.permutation(domains * size)[: 3 * size], 100), every
    for domain in range(domains):
        for label in every[:10]:
            yield "one class", split(domain * size + np.flatnonzero(labels == label), 10), every
        for pair in (tuple(map(int, rng.permutation(len(every))[:2])) for _ in range(5)):
            yield "two classes", split(domain * size + rng.permutation(np.flatnonzero(np.isin(labels, pair))), 20), pair


class Images:
    """The images of all domains, prepared and encoded once."""

    def __init__(self, classifier: Classifier, domains: list[NDArray[np.uint8]]):
        self.classifier = classifier
        pixels = torch.from_numpy(np.concatenate(domains)).permute(0, 3, 1, 2)
        with torch.no_grad(), isolated(classifier.model.device):
            self.prepared = torch.cat([classifier.model.prepare(part) for part in pixels.split(100)])
            self.features = torch.cat([self._embed(part) for part in self.prepared.split(100)])

    def _embed(self, prepared: Tensor) -> Tensor:
        return self.classifier.embed(self.classifier.model.encode_image(prepared))

    @torch.no_grad()
    def encoded(self, batches: Batches) -> Iterator[Encoded]:
        """Yield the encoded batches of a stream, with the offsets of their negatives."""
        features = CLIP(self.classifier, debias=Panda()).features
        for batch in batches:
            negatives = features.draw(self.prepared[batch])
            assert negatives is not None
            embedded = self._embed(negatives.images) if len(negatives.images) else self.features[:0]
            yield features.with_offset(Encoded(self.features[batch]), negatives, embedded)


def gains(images: Images, classifier: Classifier, batches: Batches, labels: Tensor) -> list[float]:
    """Gains of all corrections on one stream, in points."""
    methods = [create_method("clip", classifier)]
    methods += [create_method(name, classifier, **settings) for name, settings in CORRECTIONS.values()]
    right = np.zeros(len(methods))
    for batch, encoded in zip(batches, images.encoded(batches), strict=True):
        for place, method in enumerate(methods):
            assert isinstance(method, CLIP)
            right[place] += float((method.adapt_encoded(encoded).argmax(1).cpu() == labels[batch]).sum())
    return list(100 * (right[1:] - right[0]) / sum(map(len, batches)))


def load(options: argparse.Namespace) -> tuple[list[NDArray[np.uint8]], Indices, tuple[str, ...]]:
    """Load the images of every domain, their labels, and the names of the classes."""
    if options.classes:
        rng = np.random.default_rng(options.classes)
        others = [name for name in symbols() if name not in BENCHMARK_CLASSES]
        if not 2 <= options.classes <= len(others):
            raise SystemExit(f"--classes must be 2 to {len(others)}, the number of symbols; got {options.classes}.")
        names = tuple(map(str, rng.permutation(others)[: options.classes]))
        clean = draw_glyphs(names, max(1, options.images // options.classes), seed=7)
        return [corrupt(clean.images, name, 5, seed=7) for name in CORRUPTIONS], clean.labels, names
    sets = [load_data(options.data, name, 5, root=options.data_root, limit=options.images) for name in CORRUPTIONS]
    return [each.images_at(np.arange(len(each))) for each in sets], sets[0].labels, sets[0].class_names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mini", help="model, as for tta-panda bench")
    parser.add_argument("--data", default="glyphs-val-c", help="data set, as for tta-panda bench")
    parser.add_argument("--data-root", help="folder of data sets on disk")
    parser.add_argument("--images", type=int, default=1000, help="images per corruption")
    parser.add_argument("--classes", type=int, help="use this number of other symbols instead of --data")
    options = parser.parse_args()
    domains, labels, names = load(options)
    model = load_model(options.model)
    images = Images(make_classifier(model, names), domains)
    classifier_of = functools.cache(lambda classes: make_classifier(model, [names[label] for label in classes]))
    found: dict[str, list[list[float]]] = {}
    for kind, batches, classes in streams(labels, len(domains), np.random.default_rng(0)):
        place = {label: index for index, label in enumerate(classes)}
        targets = torch.tensor([place.get(int(label), -1) for label in np.tile(labels, len(domains))])
        found.setdefault(kind, []).append(gains(images, classifier_of(classes), batches, targets))
    print(f"| | {' | '.join(found)} |\n|---|{'---|' * len(found)}")
    for row, name in enumerate(CORRECTIONS):
        columns = [np.array(streams_of_kind)[:, row] for streams_of_kind in found.values()]
        print(f"| {name} | {' | '.join(f'{column.mean():+.1f} ({column.min():+.1f})' for column in columns)} |")


if __name__ == "__main__":
    main()
