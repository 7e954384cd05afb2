"""Draw the signatures of corrupted symbols in their two principal directions, coloured by corruption and by class."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from tta_panda.data import load_data
from tta_panda.data.corruptions import CORRUPTIONS
from tta_panda.panda.signature import signatures

IMAGES = 60  # of each corruption


def draw_points(axes: Axes, points: Tensor, groups: NDArray[np.int64], names: Sequence[str], title: str) -> None:
    """Scatter points (N, 2) of groups (N,)."""
    for group, name in enumerate(names):
        own = points[torch.from_numpy(groups == group)]
        axes.scatter(
            own[:, 0], own[:, 1], s=7, color=colormaps["tab20"](group), linewidths=0, label=name.replace("_", " ")
        )
    axes.set(title=title, xlabel="first principal direction")
    axes.legend(fontsize=7, markerscale=2, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, nargs="?", default=Path("docs/images/signatures.png"))
    output: Path = parser.parse_args().output
    domains = [load_data("glyphs-val-c", name, limit=IMAGES) for name in CORRUPTIONS]
    images = np.concatenate([domain.images_at(np.arange(len(domain))) for domain in domains])
    found = signatures(torch.from_numpy(images).permute(0, 3, 1, 2))
    found = (found - found.mean(dim=0)) / found.std(dim=0)
    points = found @ torch.linalg.svd(found, full_matrices=False).Vh[:2].T
    corruptions = np.repeat(np.arange(len(domains)), [len(domain) for domain in domains])
    labels = np.concatenate([domain.labels for domain in domains])

    figure = Figure(figsize=(11, 4), layout="constrained")
    by_corruption, by_class = figure.subplots(1, 2, sharex=True, sharey=True)
    draw_points(by_corruption, points, corruptions, CORRUPTIONS, "by corruption")
    draw_points(by_class, points, labels, domains[0].class_names, "the same, by class")
    by_corruption.set_ylabel("second")
    figure.savefig(output, dpi=100)


if __name__ == "__main__":
    main()
