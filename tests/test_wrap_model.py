"""Networks that are in memory already: wrapped by one call, and left as they were."""

from __future__ import annotations

import copy

import open_clip
import pytest
import timm
import torch
from conftest import TINY
from model_zoo import save_transformers
from torch import nn

from tta_panda import CLIP, Panda, Tent, check_model, make_classifier
from tta_panda.errors import InvalidInputError, ModelLoadError, UnsupportedModelError
from tta_panda.models import load_model, wrap_model

NAMES = ["heart", "star", "anchor", "cloud"]
TOKENIZER = open_clip.SimpleTokenizer(context_length=77)


def make_clip() -> nn.Module:
    torch.manual_seed(0)
    clip = open_clip.CLIP(**TINY)
    mean, std = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    open_clip.set_model_preprocess_cfg(clip, {"size": 32, "mean": mean, "std": std})
    return clip


def make_timm() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("test_resnet", num_classes=4)


def flags(network: nn.Module) -> list[object]:
    """All that wrapping must not change, apart from the weights themselves."""
    parameters = [(id(p), p.requires_grad, p.dtype, p.device, p.grad is None) for p in network.parameters()]
    return [parameters, [module.training for module in network.modules()], [id(b) for b in network.buffers()]]


@pytest.mark.parametrize(("make", "tokenizer"), [(make_clip, TOKENIZER), (make_timm, None)])
def test_a_network_stays_as_it_was_while_its_model_adapts(make, tokenizer, images):
    network = make().train()
    next(network.parameters()).requires_grad_(False)
    before = flags(network)
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    model = wrap_model(network, tokenizer=tokenizer)
    assert set(dict(check_model_notes(model))) == (set() if tokenizer else {"tpt", "bat", "clipartt", "watt"})
    Tent(make_classifier(model, NAMES), lr=0.1, debias=Panda(beta=0.5)).adapt(images[:8])
    assert flags(network) == before
    assert all(torch.equal(tensor, weights[name]) for name, tensor in network.state_dict().items())
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def check_model_notes(model):
    return [note.split(":", 1) for note in check_model(model)]


def test_weights_are_shared_and_features_are_the_networks_own(tiny, images):
    network = make_clip()
    network.token_embedding.weight = nn.Parameter(network.token_embedding.weight.detach())
    model = wrap_model(network, TOKENIZER, name="mine")
    assert repr(model) == "OpenClipModel('mine', image_size=32, device='cpu', precision='fp32')"
    pointers = {parameter.data_ptr() for parameter in network.parameters()}
    assert {parameter.data_ptr() for parameter in model.parameters()} == pointers
    prepared = model.prepare(images[:4])
    with torch.no_grad():
        torch.testing.assert_close(model.encode_image(prepared), tiny.encode_image(prepared))  # the same seed
        network.visual.proj.mul_(2)
        torch.testing.assert_close(model.encode_image(prepared), 2 * tiny.encode_image(prepared))


def test_half_weights_are_copied_as_float32(images):
    network = make_clip().half()
    model = wrap_model(network, TOKENIZER)
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with torch.no_grad():
        assert model.encode_image(model.prepare(images[:2])).isfinite().all()
    assert wrap_model(make_clip(), TOKENIZER, precision="bf16").precision == "bf16"


def test_a_network_made_in_inference_mode_can_be_adapted(images):
    with torch.inference_mode():
        network = make_timm()
        model = wrap_model(network)
        method = Tent(make_classifier(model, NAMES), lr=0.1)
        first = method.adapt(images[:8])
        assert not torch.equal(method.adapt(images[:8]), first)


def test_transformers_models_are_wrapped_with_their_processor(tmp_path, images):
    transformers = pytest.importorskip("transformers")
    directory = save_transformers("clip", tmp_path)
    network = transformers.AutoModel.from_pretrained(directory).train()
    before = flags(network)
    image_processor = transformers.AutoImageProcessor.from_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    both = transformers.CLIPProcessor(image_processor, tokenizer)
    loaded = load_model(str(directory))
    prepared = loaded.prepare(images[:2])
    for model in (wrap_model(network, tokenizer, image_processor), wrap_model(network, processor=both)):
        with torch.no_grad():
            assert torch.equal(model.encode_image(prepared), loaded.encode_image(prepared))
            assert torch.equal(model.encode_text(NAMES), loaded.encode_text(NAMES))
    assert flags(network) == before
    with pytest.raises(InvalidInputError, match="needs its tokenizer and image processor"):
        wrap_model(network, tokenizer)
    bert = transformers.BertModel(
        transformers.BertConfig(hidden_size=8, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8)
    )
    with pytest.raises(ModelLoadError, match="BertModel is a model of type 'bert'; supported are clip"):
        wrap_model(bert, tokenizer, image_processor)


def test_what_cannot_be_wrapped_is_explained():
    with pytest.raises(InvalidInputError, match="open_clip, transformers or timm, got Linear of torch"):
        wrap_model(nn.Linear(2, 2))
    with pytest.raises(InvalidInputError, match=r"wrap_model\(network, tokenizer=open_clip.get_tokenizer"):
        wrap_model(make_clip())


def test_a_network_without_preprocessing_says_what_to_set():
    network = open_clip.CLIP(**TINY)
    tokenizer = open_clip.get_tokenizer("ViT-B-32")
    with pytest.raises(InvalidInputError, match=r"missing: mean, std.*set_model_preprocess_cfg"):
        wrap_model(network, tokenizer)
    open_clip.set_model_preprocess_cfg(network, {"size": 32, "mean": (0.5,) * 3, "std": (0.5,) * 3})
    assert wrap_model(network, tokenizer).image_size == 32


def test_networks_without_weights_are_refused():
    with torch.device("meta"):
        network = timm.create_model("test_resnet")
    with pytest.raises(InvalidInputError, match="has no weights: its parameters are on the device meta"):
        wrap_model(network)


@pytest.mark.parametrize("scale", [float("-inf"), float("inf"), float("nan")], ids=["zero", "infinite", "none"])
def test_logit_scales_that_make_no_logits_are_refused(scale):
    clip = make_clip()
    with torch.no_grad():
        clip.logit_scale.fill_(scale)
    model = wrap_model(clip, TOKENIZER)
    with pytest.raises(InvalidInputError, match=r"The logit scale of CLIP must be positive, got"):
        make_classifier(model, NAMES)


def test_a_compiled_encoder_gives_the_same_predictions(tiny, images):
    """Copies that train are not compiled."""
    compiled = copy.deepcopy(tiny)
    compiled.image_encoder.compile(backend="eager")
    for model in (compiled, torch.compile(tiny, backend="eager")):
        for method in (CLIP, Tent):
            ours, theirs = (method(make_classifier(each, NAMES), debias=Panda()) for each in (model, tiny))
            for batch in images[:8].split(4):
                torch.testing.assert_close(ours.adapt(batch), theirs.adapt(batch), rtol=1e-4, atol=1e-4)


def test_what_cannot_be_compiled_is_refused(tiny):
    with pytest.raises(InvalidInputError, match=r"not compiled.*model\.image_encoder\.compile\(\)"):
        wrap_model(torch.compile(tiny.clip, backend="eager"), TOKENIZER)
    tiny.encode_image = torch.compile(tiny.encode_image, backend="eager")
    with pytest.raises(UnsupportedModelError, match=r"call model\.image_encoder\.compile\(\)"):
        Tent(make_classifier(tiny, NAMES))
