"""What computes image embeddings: torch, or a library that only runs networks, and runs some of them faster.

Weights, texts and everything else stay torch's. Embeddings have no gradient, so methods that train need torch.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, UnknownNameError, UnsupportedModelError, missing_extra
from tta_panda.images import check_prepared
from tta_panda.models.base import ImageModel

Backend = Literal["torch", "openvino"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def check_backend(backend: str, device: str = "cpu", precision: str = "fp32") -> None:
    """Raise unless image embeddings can be computed by this backend here."""
    if backend not in BACKENDS:
        raise UnknownNameError("backend", backend, BACKENDS)
    if backend == "torch":
        return
    if torch.device(device).type != "cpu" or precision != "fp32":
        raise InvalidInputError(f"{backend} computes on a processor in fp32; got {device} and {precision}. Use torch.")
    if importlib.util.find_spec(backend) is None:
        raise missing_extra(f"The backend {backend} needs", backend)


def backend_of(model: ImageModel) -> str:
    """What computes the image embeddings of a model, with its version where it is not torch."""
    encoder = vars(model).get("encode_image")
    return encoder.version if isinstance(encoder, OpenVinoEncoder) else "torch"


def check_trainable(model: ImageModel) -> None:
    """Raise if embeddings of this model have no gradient."""
    if backend_of(model) != "torch":
        raise UnsupportedModelError(
            f"{model.name} was loaded with the backend openvino, which cannot train, as this method does. Load it with "
            "the backend torch."
        )


class OpenVinoEncoder:
    """`encode_image` of a model, by OpenVINO on a processor.

    Args:
        model: whose network is converted, as its weights are now.
    """

    def __init__(self, model: ImageModel):
        sys.modules.setdefault("openvino_telemetry", cast(Any, None))  # OpenVINO would report conversions to its makers
        import openvino

        self.version = f"openvino {openvino.__version__}"
        self.image_size = model.image_size
        example = torch.zeros(2, 3, self.image_size, self.image_size)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # of torch, about being traced
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
