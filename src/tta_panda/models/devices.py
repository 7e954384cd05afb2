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
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

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


def count_devices(device: str) -> int:
    """Return how many devices a name without an index can stand for."""
    kind = torch.device(device)
    return 1 if kind.type == "cpu" or kind.index is not None else max(1, torch.accelerator.device_count())


def device_of_worker(device: str, number: int) -> str:
    """Return the device of a worker: those of one machine take turns among its GPUs, unless `device` has an index."""
    count = count_devices(device)
    return device if count == 1 else f"{device}:{number % count}"


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


class _FrozenWeightsCast(TorchFunctionMode):
    """Context in which `torch.autocast` finds frozen weights in its precision: it would cast them in every pass."""

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in _IN_HALF:
            args = [self._cast(value) for value in args]
            kwargs = {name: self._cast(value) for name, value in kwargs.items()}
        return function(*args, **kwargs)

    def _cast(self, value: Any) -> Any:
        if not isinstance(value, nn.Parameter) or value.requires_grad or value.dtype != torch.float32:
            return value
        content = self.dtype, value.data_ptr(), value._version
        if value not in _CASTS or _CASTS[value][0] != content:
            with torch.inference_mode(False), torch.no_grad():
                _CASTS[value] = content, value.to(self.dtype)
        return _CASTS[value][1]


_IN_HALF = {
    *(F.linear, F.conv1d, F.conv2d, F.conv3d, F.multi_head_attention_forward),
    *(torch.matmul, Tensor.matmul, Tensor.__matmul__),
}
"""Functions that autocast computes in half precision, and that take weights."""

_CASTS: MutableMapping[nn.Parameter, tuple[object, Tensor]] = WeakTensorKeyDictionary()


@contextlib.contextmanager
def autocast(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute in this precision within the block, whatever the caller's `torch.autocast`."""
    dtype = AUTOCAST[precision]
    if dtype is None:
        with full_precision(device):
            yield
    else:
        with torch.autocast(device.type, dtype=dtype), _FrozenWeightsCast(dtype):
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
    """Raise if the backend of this model computes no gradients, or if its encoder cannot be copied."""
    if backend_of(model) != "torch":
        raise UnsupportedModelError(
            f"{model.name} was loaded with the backend openvino, which does not support training. This method needs "
            "the backend torch."
        )
    if "encode_image" in vars(model):
        raise UnsupportedModelError(
            f"encode_image of {model.name} was replaced, and would not train the copy that this method makes. To "
            "compile a model, call model.image_encoder.compile() instead."
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
