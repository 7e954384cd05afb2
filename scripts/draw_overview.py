"""Draw the picture of the README: a corrupted batch, its negatives, and what the offset does to the predictions.

python scripts/draw_overview.py docs/images/overview.png
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tta_panda import CLIP, Panda, Stream, ZeroShotClassifier, load_data, load_model
from tta_panda.reporting.figures import PANDA_COLOUR, PLAIN_COLOUR, REFERENCE_COLOUR

DATA, CORRUPTION = "glyphs-val-c", "gaussian_noise"


def show_images(axes: Axes, images: Tensor, columns: int, title: str) -> None:
    """Images (N, 3, H, W) side by side with a thin gap."""
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), value=1.0)
    rows = [torch.cat(list(row), dim=2) for row in padded.split(columns)]
    axes.imshow(torch.cat(rows, dim=1).permute(1, 2, 0).numpy())
    axes.set_title(title, loc="left")
    axes.axis("off")


def main(path: str) -> None:
    classifier = ZeroShotClassifier(load_model("mini"), load_data(DATA, limit=1).class_names)
    images, labels = next(iter(Stream(load_data(DATA, CORRUPTION, 5), 100, seed=0)))
    plain, panda = CLIP(classifier), CLIP(classifier, debias=Panda())
    batch = panda.features.prepare(images)
    encoded = panda.features.encode(batch)
    assert batch.negatives is not None and encoded.offset is not None
    predictions = {
        "CLIP": (plain.adapt_encoded(encoded).argmax(1), PLAIN_COLOUR),
        "CLIP + Panda": (panda.adapt_encoded(encoded).argmax(1), PANDA_COLOUR),
    }
    pull = (encoded.offset @ classifier.class_embeddings.T)[0].numpy()

    names = classifier.class_names
    places = np.arange(len(names))
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    grid = figure.add_gridspec(2, 3, width_ratios=[1.25, 0.8, 1.15])
    show_images(figure.add_subplot(grid[:, 0]), batch.images[:80], 8, f"a batch ({CORRUPTION.replace('_', ' ')})")
    show_images(figure.add_subplot(grid[:, 1]), batch.negatives.images[:8], 2, "its negatives")
    top, bottom = figure.add_subplot(grid[0, 2]), figure.add_subplot(grid[1, 2])
    top.bar(places, pull - pull.mean(), color=REFERENCE_COLOUR)
    top.axhline(0, color="black", linewidth=0.6)
    top.set_title("the offset: which classes the negatives resemble", loc="left", fontsize=10)
    for shift, (label, (predicted, colour)) in zip((-0.2, 0.2), predictions.items(), strict=True):
        accuracy = float((predicted == labels).float().mean())
        counts = torch.bincount(predicted, minlength=len(names)).numpy()
        bottom.bar(places + shift, counts, 0.4, color=colour, label=f"{label}, {accuracy:.0%} right")
    occurring = torch.bincount(labels, minlength=len(names)).numpy()
    edges = np.arange(len(names) + 1) - 0.5
    bottom.stairs(occurring, edges, color=REFERENCE_COLOUR, linestyle="--", linewidth=0.8, label="labels")
    bottom.set_title("predictions without and with it subtracted", loc="left", fontsize=10)
    bottom.legend(frameon=False, fontsize=8)
    for axes in (top, bottom):
        axes.set_xticks(places, names, rotation=45, ha="right", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/overview.png")
