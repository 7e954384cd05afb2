"""Declared state: defaults, reset, copies, children and generators."""

from __future__ import annotations

import pytest
import torch

from tta_panda.state import Stateful


class Child(Stateful):
    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(2))
        self.add_state("generator", torch.Generator().manual_seed(3))


class Parent(Stateful):
    def __init__(self):
        super().__init__()
        self.setting = 5
        self.add_state("child", Child())
        self.add_state("cache", {"values": torch.ones(2), "count": {"seen": 0}})
        self.add_state("mean", None)

    def see(self) -> float:
        self.child.total += 1
        self.cache["values"].mul_(2)
        self.cache["count"]["seen"] += 1
        self.mean = self.child.total / 2
        return float(torch.rand(1, generator=self.child.generator))


def test_reset_restores_defaults_children_and_generators():
    parent = Parent()
    child = parent.child
    first = [parent.see(), parent.see()]
    parent.setting = 6
    parent.reset()
    assert parent.child is child and parent.mean is None and parent.setting == 6
    assert parent.cache["values"].tolist() == [1, 1] and parent.cache["count"] == {"seen": 0}
    assert [parent.see(), parent.see()] == first


def test_state_is_a_copy_that_another_object_goes_on_from():
    parent, other = Parent(), Parent()
    parent.see()
    state = parent.state_dict()
    expected = parent.see(), parent.see()
    other.load_state_dict(state)
    assert (other.see(), other.see()) == expected
    assert other.child.total.tolist() == parent.child.total.tolist() == [3, 3]
    assert state["child"]["total"].tolist() == [1, 1] and state["cache"]["count"] == {"seen": 1}
    assert set(state) == {"child", "cache", "mean"}


@pytest.mark.parametrize("mode", [True, False])
def test_states_may_be_changed_whatever_mode_they_were_declared_in(mode):
    with torch.inference_mode(mode):
        parent = Parent()
        parent.load_state_dict(parent.state_dict())
    parent.see()
    assert not parent.child.total.is_inference()


def test_tensors_are_loaded_to_the_device_of_their_default_or_else_to_the_state_device():
    parent = Parent()
    parent.see()
    parent.state_device = torch.device("meta")
    parent.load_state_dict(parent.state_dict())
    assert parent.mean.device.type == "meta"
    assert parent.cache["values"].device.type == parent.child.total.device.type == "cpu"
