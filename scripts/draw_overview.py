"""Draw the figure of the README: corrupted photographs, their negatives, and predictions without and with Panda.

pip install scikit-image "tta-panda[lite]"   # five free photographs, and a model for photographs
python scripts/draw_overview.py docs/images/overview.jpg
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.resources import files

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from tta_panda import CLIP, Panda, load_model
from tta_panda.data.corruptions import corrupt
from tta_panda.models import make_classifier
from tta_panda.reporting.figures import PANDA_COLOUR, PLAIN_COLOUR, REFERENCE_COLOUR

PHOTOGRAPHS = {
    "chelsea.png": "tiger cat",
    "coffee.png": "espresso",
    "rocket.jpg": "missile",
    "motorcycle_left.png": "moped",
    "camera.png": "tripod",
}
ABSENT = ["bubble", "jellyfish", "maze", "wall clock", "lampshade"]
CROPS, SIDE, CORRUPTION = 20, 224, "gaussian_noise"


def crop_photographs(names: Sequence[str]) -> tuple[np.ndarray, Tensor]:
    """Crop random squares (N, H, W, 3) from the photographs, in random order; also return their classes (N,)."""
    rng = np.random.default_rng(0)
    crops = []
    for file, name in PHOTOGRAPHS.items():
        with (files("skimage") / "data" / file).open("rb") as stream:
            photograph = Image.open(stream).convert("RGB")
        for _ in range(CROPS):
            side = rng.uniform(0.6, 1.0) * min(photograph.size)
            left, top = (rng.uniform(0, length - side) for length in photograph.size)
            crop = photograph.resize((SIDE, SIDE), Image.Resampling.BICUBIC, (left, top, left + side, top + side))
            crops.append((np.asarray(crop)[:, :: rng.choice([-1, 1])], names.index(name)))
    order = rng.permutation(len(crops))
    return np.stack([crops[i][0] for i in order]), torch.tensor([crops[i][1] for i in order])


def show_images(axes: Axes, images: Tensor, columns: int, title: str) -> None:
    """Show images (N, 3, H, W) in a grid with thin gaps."""
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4), value=1.0)
    rows = [torch.cat(list(row), dim=2) for row in padded.split(columns)]
    axes.imshow(torch.cat(rows, dim=1).permute(1, 2, 0).numpy())
    axes.set_title(title, loc="left")
    axes.axis("off")


def main(path: str) -> None:
    classifier = make_classifier(load_model("lite0"), [*PHOTOGRAPHS.values(), *ABSENT])
    photographs, labels = crop_photographs(classifier.class_names)
    images = torch.from_numpy(corrupt(photographs, CORRUPTION, severity=5, seed=0)).permute(0, 3, 1, 2)
    plain, panda = CLIP(classifier), CLIP(classifier, debias=Panda())
    batch = panda.features.prepare(images)
    encoded = panda.features.encode(batch)
    assert batch.negatives is not None and encoded.offset is not None
    predictions = {
        "plain": (plain.adapt_encoded(encoded).argmax(1), PLAIN_COLOUR),
        "with Panda": (panda.adapt_encoded(encoded).argmax(1), PANDA_COLOUR),
    }
    pull = (encoded.offset @ classifier.class_embeddings.T)[0].numpy()

    names = classifier.class_names
    places = np.arange(len(names))
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    grid = figure.add_gridspec(2, 3, width_ratios=[1.25, 0.8, 1.15])
    show_images(figure.add_subplot(grid[:, 0]), images[:24] / 255, 4, f"a batch ({CORRUPTION.replace('_', ' ')})")
    show_images(figure.add_subplot(grid[:, 1]), batch.negatives.images[:8].clamp(0, 1), 2, "its negatives")
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
    bottom.set_ylim(top=1.25 * bottom.get_ylim()[1])  # room for the legend
    bottom.legend(frameon=False, fontsize=8, ncols=3, loc="upper right", handlelength=1.2, columnspacing=1.2)
    for axes in (top, bottom):
        axes.set_xticks(places, names, rotation=45, ha="right", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110, pil_kwargs={"quality": 88})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/images/overview.jpg")
