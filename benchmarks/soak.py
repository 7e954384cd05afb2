"""Check that speed and memory stay constant over long streams.

python benchmarks/soak.py --images 200000 --method tent+panda,dmn+panda,predict
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import numpy as np
import torch
from timer import Estimate
from torch import Tensor
from workload import foggy_images, load_classifier, make_parser, print_table

from tta_panda import create_method, predict_stream
from tta_panda.evaluation.memory import memory_in_use
from tta_panda.methods.base import Method

PICTURES = 1000  # repeated with new noise
NOISE = 20.0  # standard deviation, of 255


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--readings", type=int, default=50, help="number of measurements along a stream")
    parser.add_argument("--images", type=int, default=20_000, help="length of each stream")
    parser.add_argument(
        "--method",
        default="tent+panda,dmn+panda,predict",
        help="comma-separated; predict is predict_stream",
    )
    arguments = parser.parse_args()
    size, batches = arguments.batch_size, arguments.images // arguments.batch_size
    if batches < arguments.readings:
        parser.error(f"a stream of {batches} batches is too short; use at least --images {arguments.readings * size}.")
    classifier = load_classifier(arguments)
    model = classifier.model
    pictures = foggy_images(PICTURES, model.image_size)
    prepared = model.prepare(pictures[:size])
    now = time.process_time if arguments.cpu_time else time.perf_counter
    rows = []
    for name in arguments.method.split(","):
        is_predict = name == "predict"
        method = create_method("clip+panda" if is_predict else name, classifier)
        stream = _predict(method, pictures, size) if is_predict else _adapt(method, pictures, size)
        memory, ratios = [], []  # after each reading; time of a batch divided by that of an encoder pass
        for reading in range(arguments.readings):
            start = now()
            steps = (reading + 1) * batches // arguments.readings - reading * batches // arguments.readings
            for _ in itertools.islice(stream, steps):
                pass
            adapted = now()
            with torch.no_grad():
                model.encode_image(prepared).cpu()
            ratios.append((adapted - start) / steps / (now() - adapted))
            memory.append((memory_in_use(model.device) or 0) / 2**20)
        rows.append({"stream": name, **summarise(memory, ratios)})
    print_table(rows, f"{arguments.model}, {batches} batches of {size} images; the first tenth is not counted.")


def summarise(memory: list[float], ratios: list[float]) -> dict[str, object]:
    """Summarise memory in MiB and time relative to the encoder, without the first tenth of the readings."""
    memory, ratios = memory[len(memory) // 10 :], ratios[len(ratios) // 10 :]
    half = len(ratios) // 2
    return {
        "MiB": float(np.median(memory)),
        "max - min": float(np.ptp(memory)),
        "MiB gained from first to last": float(np.polyfit(range(len(memory)), memory, 1)[0]) * len(memory),
        "x encoder, first half": Estimate.of(ratios[:half]),
        "second half": Estimate.of(ratios[half:]),
    }


def _adapt(method: Method, pictures: Tensor, size: int) -> Iterator[Tensor]:
    """Adapt endlessly to pictures with new noise."""
    generator = torch.Generator().manual_seed(0)
    for start in itertools.count(step=size):
        batch = pictures[torch.arange(start, start + size) % len(pictures)]
        noise = NOISE * torch.randn(batch.shape, generator=generator)
        yield method.adapt((batch + noise).clamp_(0, 255).byte())


def _predict(method: Method, pictures: Tensor, size: int) -> Iterator[object]:
    """Predict pictures endlessly, batch by batch."""
    predictions = predict_stream(method, itertools.cycle(pictures), batch_size=size)
    while True:
        yield list(itertools.islice(predictions, size))


if __name__ == "__main__":
    main()
