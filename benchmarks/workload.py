"""Helpers of the benchmarks: options, classifiers and images of any size, and Markdown tables."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tta_panda import LinearClassifier, UnsupportedModelError, list_methods, load_data, load_model, make_classifier
from tta_panda.data.glyphs import VALIDATION_CLASSES
from tta_panda.methods.base import Method
from tta_panda.models import Classifier, ImageModel
from tta_panda.models.linear import LinearHeadModel

EARLIER_BATCHES = 2
"""Batches that a method adapts to before it is timed, so that caches are not empty."""


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Show defaults, and the description as it is written."""


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Create a parser with the options of all benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=HelpFormatter)
    parser.add_argument("--model", default="mini", help="as for tta-panda bench; ARCHITECTURE:random needs no weights")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--batch-size", type=int, default=100, help="images per batch")
    parser.add_argument("--classes", type=int, default=10, help="number of classes")
    parser.add_argument("--rounds", type=int, help="rounds per measurement; by default until margins are small")
    parser.add_argument("--cpu-time", action="store_true", help="measure CPU time, for busy machines")
    return parser


def add_method(parser: argparse.ArgumentParser, default: Sequence[str] = ()) -> None:
    """Add the option `--method`, comma-separated names of plain methods."""
    known = [name for name in list_methods() if "+" not in name]
    parser.add_argument("--method", default=",".join(default or known), help="comma-separated names of methods")


def timing_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments for `interleave`."""
    return {"device": arguments.device, "rounds": arguments.rounds, "cpu_time": arguments.cpu_time}


def load_classifier(arguments: argparse.Namespace) -> Classifier:
    return classifier_of(load_model(arguments.model, arguments.device), arguments.classes)


def classifier_of(model: ImageModel, classes: int) -> Classifier:
    """Make a classifier of any number of classes: symbols and numbered things, or the first rows of a linear head."""
    names = [*VALIDATION_CLASSES, *(f"thing {number}" for number in range(classes))][:classes]
    if isinstance(model, LinearHeadModel):
        return LinearClassifier(model, names, rows=range(classes))
    return make_classifier(model, names)


def foggy_images(count: int, side: int) -> Tensor:
    """Draw symbols in fog (count, 3, side, side), uint8, repeated if there are too few."""
    data = load_data("glyphs-val-c", "fog", limit=min(count, 1000))
    images = data.images_at(np.arange(count) % len(data), fit=side)
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def warm_up(method: Method, images: Tensor) -> Callable[[], object]:
    """Adapt to a few batches, and return a function that restores the state after them."""
    for _ in range(EARLIER_BATCHES):
        method.adapt(images)
    return partial(method.load_state_dict, method.state_dict())


Measure = Callable[[str, Classifier, Tensor, argparse.Namespace], dict[str, object]]
"""Function from the name of a method, a classifier, images and options to a row of the table."""


def measure_methods(description: str | None, note: str, measure: Measure) -> None:
    """Parse the options, and print a table for every model, with a row per method that it supports."""
    parser = make_parser(description)
    add_method(parser)
    arguments = parser.parse_args()
    for model in arguments.model.split(","):
        classifier = classifier_of(load_model(model, arguments.device), arguments.classes)
        images = foggy_images(arguments.batch_size, classifier.model.image_size)
        rows, notes = [], [f"{model}, {len(images)} images, {arguments.classes} classes; {note}."]
        for name in arguments.method.split(","):
            try:
                rows.append(measure(name, classifier, images, arguments))
            except UnsupportedModelError as error:
                notes.append(f"{name} was skipped: {error}")
        print_table(rows, " ".join(notes))
        print()


def print_table(rows: Sequence[Mapping[str, object]], note: str) -> None:
    """Print rows with the same keys as a Markdown table, below a note on how they were measured."""
    print(f"{note} {torch.get_num_threads()} thread(s), torch {torch.__version__}.\n")
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for row in rows:
        print(
            "| "
            + " | ".join(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values())
            + " |"
        )
