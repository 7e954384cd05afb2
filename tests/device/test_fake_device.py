"""The device itself: it raises where a GPU raises, and counts where a GPU makes the host wait."""

from __future__ import annotations

import fake_device
import pytest
import torch
import torch.nn.functional as F

ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + ONES,
        lambda x: ONES + x.sum(),
        lambda x: x @ ONES.T,
        lambda x: x + x.to("fake:1"),
        lambda x: torch.cat([x, ONES]),
        lambda x: torch.where(ONES > 0, x, x),
        lambda x: x.gather(0, torch.zeros(1, 3, dtype=torch.long)),
        lambda x: F.layer_norm(x, (3,), ONES[0]),
        lambda x: torch.add(x, x, out=torch.empty(2, 3)),
        lambda x: F.conv1d(x[None], ONES[None]),
        lambda x: x.normal_(generator=torch.Generator()),
        lambda x: x.long() @ x.long().T,
        lambda x: x.numpy(),
    ],
)
def test_what_a_gpu_refuses_raises(mixed, fake):
    with pytest.raises((RuntimeError, TypeError), match=r"device|implemented"):
        mixed(ONES.to(fake))


def test_numbers_and_indices_on_the_cpu_are_accepted(fake):
    x = ONES.to(fake)
    assert torch.equal((x * torch.tensor(2.0)).cpu(), ONES * 2)
    assert torch.equal(x[torch.tensor([1])].cpu(), ONES[:1])
    assert str(x.device) == fake and torch.ones(1, device="fake:1").device.index == 1


def test_waits_and_launches_are_counted(fake):
    x = ONES.to(fake)
    with fake_device.watch() as log:
        (x + x) * 2
    assert not log.waits and log.launches == 2
    with fake_device.watch() as log:
        ONES.to(fake, non_blocking=True)
    assert not log.waits
    for wait in (
        torch.Tensor.tolist,
        torch.nonzero,
        lambda x: x[x > 0],
        lambda x: x.index_put_((x > 0,), x.sum(1).repeat(3)),
        torch.Tensor.cpu,
    ):
        with fake_device.watch() as log:
            wait(x)
        assert log.waits.total() == 1, wait
    with fake_device.watch() as log:
        ONES.to(fake)
        torch.accelerator.synchronize()
    assert log.waits.total() == 2


def test_memory_is_counted(fake):
    with fake_device.watch() as log:
        for size in (1000, 500):
            torch.ones(size, device=fake)
    assert log.peak_memory == 4000
