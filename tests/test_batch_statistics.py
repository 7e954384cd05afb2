"""BatchNorm layers of trained methods: statistics of the batch's images, and a model that otherwise does not change."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import nn

from tta_panda import Panda, Tent, make_classifier, wrap_model
from tta_panda.methods import create_method
from tta_panda.methods.adaptation import BatchStatistics, NormaliseByFirst


@pytest.fixture(scope="module")
def classifier():
    torch.manual_seed(0)
    network = timm.create_model("test_resnet", num_classes=4).eval()
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):  # as if it had been trained
            nn.init.uniform_(layer.running_mean, -0.5, 0.5)
            nn.init.uniform_(layer.running_var, 0.5, 2.0)
            nn.init.uniform_(layer.weight, 0.5, 1.5)
    return make_classifier(wrap_model(network), ["heart", "star", "anchor", "cloud"])


def with_own_batch_statistics(module: nn.Module) -> nn.Module:
    """A copy whose BatchNorm layers are in torch's training mode."""
    twin = copy.deepcopy(module)
    for layer in twin.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train()
    return twin


def test_predictions_are_those_of_training_mode(classifier, images):
    model = with_own_batch_statistics(classifier.model)
    expected = classifier.logits(classifier.embed(model.encode_image(model.prepare(images[:8]))))
    torch.testing.assert_close(Tent(classifier).adapt(images[:8]), expected.detach(), atol=1e-4, rtol=1e-4)


def test_gradients_are_those_of_training_mode():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.Flatten()]
    network = nn.Sequential(*layers, nn.BatchNorm1d(144)).eval()
    twin, pixels = with_own_batch_statistics(network), torch.randn(5, 3, 10, 10)
    twin(pixels).square().sum().sqrt().backward()
    with BatchStatistics(5):
        network(torch.cat([pixels, torch.randn(2, 3, 10, 10)]))[:5].square().sum().sqrt().backward()
    for one, other in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4)
    assert not network[1].running_mean.any()
    assert network[1].num_batches_tracked == 0


def test_running_statistics_are_used_where_asked_for_and_for_a_single_image(classifier, images):
    model = classifier.model
    plain = classifier.logits(classifier.embed(model.encode_image(model.prepare(images[:8])))).detach()
    running = Tent(classifier, norm_statistics="running").adapt(images[:8])
    torch.testing.assert_close(running, plain)
    assert not torch.allclose(Tent(classifier).adapt(images[:8]), plain, atol=1e-2)
    torch.testing.assert_close(Tent(classifier).adapt(images[:1]), plain[:1], atol=1e-5, rtol=1e-5)
    Tent(classifier, debias=Panda(beta=0.5, patch_size=32)).adapt(images[:1])


def test_the_reference_protocol_keeps_running_statistics_whatever_the_preset(classifier, images):
    expected = Tent(classifier, norm_statistics="running").adapt(images[:8])
    for preset in (None, "cifar10-c"):
        reference = create_method(
            "tent", classifier, preset=preset, protocol="reference", predict_with="before", lr=1e-3
        )
        assert torch.equal(reference.adapt(images[:8]), expected)
    chosen = create_method("tent", classifier, protocol="reference", predict_with="before", norm_statistics="batch")
    assert not torch.allclose(chosen.adapt(images[:8]), expected, atol=1e-2)


def test_negatives_do_not_enter_the_statistics(classifier, images):
    method = Tent(classifier, debias=Panda(beta=0.5, ratio=0.5, patch_size=32))
    with torch.no_grad():
        encoded = method.encode(method.features.prepare(images[:8]))
        plain = Tent(classifier).encode(method.features.prepare(images[:8]))
    assert len(encoded.negatives) == 4
    torch.testing.assert_close(encoded.features, plain.features, atol=1e-5, rtol=1e-5)


def test_the_callers_model_and_its_running_statistics_stay_as_they_are(classifier, images):
    before = copy.deepcopy(classifier.model.state_dict())
    method = Tent(classifier, lr=0.01)
    first = method.adapt(images[:8])
    second = method.adapt(images[:8])
    assert not torch.equal(first, second)
    saved = method.state_dict()
    third = method.adapt(images[:8])
    other = Tent(classifier, lr=0.01)
    other.load_state_dict(saved)
    assert torch.equal(other.adapt(images[:8]), third)
    method.reset()
    assert torch.equal(method.adapt(images[:8]), first)
    assert not any(layer.training for layer in method.model.modules())
    after = classifier.model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("shape", [(7, 3, 2, 2), (7, 3)])
def test_gradients_reach_images_through_what_follows_them(shape: tuple[int, ...]):
    generator = torch.Generator().manual_seed(0)
    given = [torch.randn(size, dtype=torch.float64, generator=generator) for size in (shape, 3, 3)]
    for tensor in given:
        tensor.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda *tensors: NormaliseByFirst.apply(*tensors, 5, 1e-5), given)
    assert torch.autograd.gradcheck(lambda values: NormaliseByFirst.apply(values, None, None, 5, 1e-5), given[:1])


def test_layers_without_weight_and_bias_are_normalised_alike():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8)).eval()
    twin, pixels = with_own_batch_statistics(network), torch.randn(5, 3, 10, 10)
    with BatchStatistics(5):
        got = network(torch.cat([pixels, torch.randn(2, 3, 10, 10)]))[:5]
    torch.testing.assert_close(got, twin(pixels), atol=1e-4, rtol=1e-4)
    got.square().sum().backward()
    twin(pixels).square().sum().backward()
    torch.testing.assert_close(network[2].weight.grad, twin[2].weight.grad, atol=1e-3, rtol=1e-3)
