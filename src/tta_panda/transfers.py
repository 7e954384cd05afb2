"""Copies between the CPU and another device: a GPU works asynchronously, and most copies make the host wait for it."""

from __future__ import annotations

import torch
from torch import Tensor

Index = Tensor | slice


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, if it is on another; the host does not wait for the copy."""
    if tensor.device.type != "cpu" or device.type == "mps":  # where memory may be freed before it is copied
        return tensor.to(device)
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor  # CUDA waits before it copies other memory
    return pinned.to(device, non_blocking=True)


def to_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copy tensors of one device to the CPU, all in one copy, which the host waits for once."""
    if tensors[0].device.type == "cpu":
        return tensors
    parts = [tensor.detach().flatten().view(torch.uint8) for tensor in tensors]
    copied = torch.cat(parts).cpu().split([len(part) for part in parts])
    pairs = zip(copied, tensors, strict=True)
    return tuple(part.clone().view(tensor.dtype).view(tensor.shape) for part, tensor in pairs)


def select(tensor: Tensor, index: Index) -> Tensor:
    """Select rows of a tensor by a slice, or by an index that may be on the CPU."""
    return tensor[index if isinstance(index, slice) else to_device(index, tensor.device)]
