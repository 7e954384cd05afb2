"""Measure the time of sweeps over ten betas, which share encoder passes, relative to a single run.

python benchmarks/sweep.py
"""

from __future__ import annotations

import tempfile
from functools import partial

import torch
from timer import interleave
from workload import foggy_images, load_classifier, make_parser, print_table, timing_options

from tta_panda import create_method
from tta_panda.evaluation.loop import run_stream
from tta_panda.models.feature_cache import FeatureCache

BATCHES = 6
BETAS = tuple(tenth / 10 for tenth in range(1, 11))
SWEEPS = ("clip", "dmn", "tda", "oga", "stata", "clip,dmn,tda", "clip,dmn,tda,oga,stata")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--sweep", nargs="*", default=SWEEPS, help="methods of each sweep, separated by commas")
    arguments = parser.parse_args()
    classifier = load_classifier(arguments)
    images = foggy_images(BATCHES * arguments.batch_size, classifier.model.image_size)
    labels = torch.arange(len(images)) % arguments.classes
    batches = list(zip(images.split(arguments.batch_size), labels.split(arguments.batch_size), strict=True))
    one = create_method("clip+panda", classifier, beta=0.5)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        cache = FeatureCache(folder, classifier.model)
        for sweep in arguments.sweep:
            names = sweep.split(",")
            methods = [create_method(name, classifier) for name in names]
            methods += [create_method(f"{name}+panda", classifier, beta=beta) for name in names for beta in BETAS]
            ways = {
                "one": partial(run_stream, [one], batches),
                "sweep": partial(run_stream, methods, batches),
                "cached": partial(run_stream, methods, batches, cache=cache),
            }
            timings = interleave(ways, **timing_options(arguments))
            rows.append(
                {
                    "methods": sweep,
                    "runs": len(methods),
                    "x one run": timings.ratio("sweep", "one"),
                    "from a cache": timings.ratio("cached", "one"),
                }
            )
    print_table(rows, f"{arguments.model}, {BATCHES} batches of {arguments.batch_size} images, relative to clip+panda.")


if __name__ == "__main__":
    main()
