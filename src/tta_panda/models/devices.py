"""Device, precision and backend of a model.

The backend computes image embeddings: torch, or an inference library, which runs some networks faster. Texts and
everything else are computed with torch. Other backends compute no gradients, so methods that train need torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, UnknownNameError, UnsupportedModelError, missing_extra
from tta_panda.models.prepare import check_prepared

if TYPE_CHECKING:
    from tta_panda.models.base import ImageModel

AUTO = "auto"

Precision = Literal["fp32", "bf16", "fp16"]

Backend = Literal["torch", "openvino"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

AUTOCAST: dict[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_device(device: str) -> str:
    """Return the device if it is available, and for `"auto"` the best available one."""
    if device == AUTO:
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        here = "auto (which is " + resolve_device(AUTO) + " here)"
        raise InvalidInputError(f"The device {device!r} cannot be used here: {reason}. Use {here} or cpu.") from error
    return device


def check_precision(precision: str, device: str = "cpu") -> None:
    """Raise unless the device supports this precision."""
    if precision not in AUTOCAST:
        raise UnknownNameError("precision", precision, AUTOCAST)
    kind = torch.device(device).type
    if AUTOCAST[precision] is not None and not torch.amp.is_autocast_available(kind):
        raise InvalidInputError(
            f"torch {torch.__version__} cannot compute in {precision} on {kind}. Use fp32, or another device."
        )


@contextlib.contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Disable the caller's `torch.autocast`, if any, on this device and the CPU."""
    with contextlib.ExitStack() as stack:
        for kind in dict.fromkeys((device.type, "cpu")):
            # Only if one is active: some versions of torch reject any autocast on MPS, even a disabled one.
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def clock(device: torch.device) -> float:
    """Return the time after all pending work on a device, as GPUs run asynchronously."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()


def check_backend(backend: str, device: str = "cpu", precision: str = "fp32") -> None:
    """Raise unless the backend is installed and supports this device and precision."""
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS)
    if backend == "torch":
        return
    if torch.device(device).type != "cpu" or precision != "fp32":
        raise InvalidInputError(f"{backend} computes on the CPU in fp32; got {device} and {precision}. Use torch.")
    if importlib.util.find_spec(backend) is None:
        raise missing_extra(f"The backend {backend} needs", backend)


def backend_of(model: ImageModel) -> str:
    """Return the backend of a model's image encoder, with its version unless it is torch."""
    encoder = vars(model).get("encode_image")
    return encoder.version if isinstance(encoder, OpenVinoEncoder) else "torch"


def check_trainable(model: ImageModel) -> None:
    """Raise if the backend of this model computes no gradients."""
    if backend_of(model) != "torch":
        raise UnsupportedModelError(
            f"{model.name} was loaded with the backend openvino, which does not support training. This method needs "
            "the backend torch."
        )


class OpenVinoEncoder:
    """`encode_image` of a model, computed by OpenVINO on the CPU.

    Args:
        model: the model whose image encoder is converted, with its current weights.
    """

    def __init__(self, model: ImageModel):
        sys.modules.setdefault("openvino_telemetry", cast(Any, None))  # no telemetry
        import openvino

        self.version = f"openvino {openvino.__version__}"
        self.image_size = model.image_size
        example = torch.zeros(2, 3, self.image_size, self.image_size)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # torch warns about tracing
            network: Any = openvino.convert_model(
                _ImageEncoder(model), example_input=example, input=[-1, *example.shape[1:]]
            )
        threads = torch.get_num_threads()
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        self._compiled: Any = openvino.compile_model(network, "CPU", settings)

    def __call__(self, prepared: Tensor) -> Tensor:
        check_prepared(prepared, self.image_size)
        return torch.from_numpy(self._compiled(prepared.detach().contiguous().numpy())[0].copy())


class _ImageEncoder(nn.Module):
    def __init__(self, model: ImageModel):
        super().__init__()
        self.model = model

    def forward(self, prepared: Tensor) -> Tensor:
        return self.model.encode_image(prepared)
