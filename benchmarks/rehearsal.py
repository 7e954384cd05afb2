"""Time, memory and waits of all methods with the settings of the paper's benchmarks, on any device, without downloads.

python benchmarks/rehearsal.py --from data/cifar-10-batches-py --images 200 --device cuda

CIFAR-10-C is made from the clean images, and serves all benchmarks with their own classes. Weights are random, in the
format of OpenAI's. A wait is an operation for which the host waits for a GPU; only CUDA counts them.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from workload import HelpFormatter, add_method, print_table

from tta_panda import UnsupportedModelError, create_method, load_data, load_model, make_classifier
from tta_panda.data.make import make_corrupted
from tta_panda.data.source import published_classes
from tta_panda.evaluation.memory import peak_memory, reset_peak_memory
from tta_panda.evaluation.record import describe_environment
from tta_panda.methods.presets import get_preset
from tta_panda.models import Classifier
from tta_panda.models.devices import clock, resolve_device

BENCHMARKS = "cifar10-c,cifar100-c,imagenet-c"
CORRUPTION = "fog"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=HelpFormatter)
    parser.add_argument("--from", dest="clean", type=Path, required=True, help="folder of clean CIFAR-10, as published")
    parser.add_argument("--model", default="ViT-B-32-quickgelu,ViT-B-16-quickgelu", help="architectures of open_clip")
    parser.add_argument("--preset", default=BENCHMARKS, help="comma-separated benchmarks")
    parser.add_argument("--images", type=int, default=200, help="number of images")
    parser.add_argument("--batch-size", type=int, default=100, help="images per batch")
    parser.add_argument("--device", default="auto", help="torch device")
    parser.add_argument("--precision", default="fp32", help="fp32, bf16 or fp16")
    add_method(parser)
    arguments = parser.parse_args()
    device = resolve_device(arguments.device)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_corrupted("cifar10-c", arguments.clean, folder, [CORRUPTION], [5])
        data = load_data("cifar10-c", CORRUPTION, 5, root=folder, limit=arguments.images)
        images = torch.from_numpy(data.images_at(np.arange(len(data)))).permute(0, 3, 1, 2)
        for architecture in arguments.model.split(","):
            file = write_weights(architecture, folder)
            model = load_model(f"{architecture}:{file}", device, arguments.precision)
            for preset in arguments.preset.split(","):
                classes = published_classes(preset.removesuffix("-c")).values()
                classifier = make_classifier(model, classes, get_preset(preset).templates)
                rows = [
                    measure(method, classifier, preset, images.split(arguments.batch_size))
                    for method in arguments.method.split(",")
                ]
                facts = f"{preset}, {architecture}, {arguments.precision}, {len(images)} images"
                print_table(rows, f"{facts}, {describe_environment(device)}.")
                print(flush=True)


def write_weights(architecture: str, folder: Path) -> Path:
    """Write random weights with the names and the fp16 values of OpenAI's checkpoints."""
    clip = load_model(f"{architecture}:random").clip  # type: ignore[attr-defined]
    weights = {name: value.half().contiguous() for name, value in clip.state_dict().items()}
    marks = {"input_resolution": clip.visual.image_size[0], "context_length": clip.context_length}
    marks["vocab_size"] = clip.vocab_size
    path = folder / f"{architecture}.safetensors"
    save_file(weights | {name: torch.tensor(number) for name, number in marks.items()}, path)
    return path


def measure(name: str, classifier: Classifier, preset: str, batches: tuple[Tensor, ...]) -> dict[str, object]:
    """Measure one row: the method without and with Panda on a stream, after a batch that warms up."""
    row: dict[str, object] = {"method": name}
    device = classifier.model.device
    for title, full_name in (("", name), ("panda: ", f"{name}+panda")):
        seconds, memory, waits = math.nan, math.nan, math.nan
        with contextlib.suppress(UnsupportedModelError):
            method = create_method(full_name, classifier, preset=preset)
            method.adapt(batches[0])
            method.reset()
            reset_peak_memory(device)
            with counted_waits(device) as caught:
                start = clock(device)
                for batch in batches:
                    method.adapt(batch)
                seconds = clock(device) - start
            memory = (peak_memory(device) or 0) / 2**20
            waits = len(caught) / len(batches) if device.type == "cuda" else math.nan
        per_image = 1000 * seconds / sum(map(len, batches))
        row |= {f"{title}ms/image": per_image, f"{title}MiB": memory, f"{title}waits/batch": waits}
    return row


@contextlib.contextmanager
def counted_waits(device: torch.device) -> Iterator[list[warnings.WarningMessage]]:
    """Record a warning for each operation that makes the host wait for CUDA."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            if device.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")


if __name__ == "__main__":
    main()
