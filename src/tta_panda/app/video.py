"""Frames of a video or a camera, predicted one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from tta_panda.errors import DataError
from tta_panda.methods.base import Method
from tta_panda.prediction.predict import Prediction, predict

Frame = NDArray[np.uint8]  # (H, W, 3)


def frames(path: Path, every: int) -> Iterator[tuple[float, Frame]]:
    """Every n-th frame of a video file, with the share of the video that it stands at."""
    capture = cv2.VideoCapture(str(path))
    try:
        if not capture.isOpened():
            raise DataError(f"Cannot read the video {path.name}: it is not one, or its format is not known.")
        total = max(1.0, capture.get(cv2.CAP_PROP_FRAME_COUNT))
        index = 0
        while capture.grab():
            if index % every == 0 and (frame := capture.retrieve()[1]) is not None:
                yield min(1.0, index / total), cv2.cvtColor(frame, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)
            index += 1
    finally:
        capture.release()


def predict_frame(method: Method, frame: Frame) -> Prediction:
    """What a method says of the next frame of its stream."""
    [prediction] = predict(method, [frame], batch_size=1)
    return prediction
