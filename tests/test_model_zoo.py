"""Every architecture that loads: real loading code, features as the library computes them, all methods."""

from __future__ import annotations

from pathlib import Path

import open_clip
import pytest
import torch
import torch.nn.functional as F
from model_zoo import OPEN_CLIP, SAVERS, TRANSFORMERS, clip_tokenizer
from torch import nn

from tta_panda import Panda, ZeroShotClassifier, check_model, load_model
from tta_panda.methods import METHODS
from tta_panda.models.base import PromptableModel
from tta_panda.models.openclip import OpenClipModel
from tta_panda.models.transformers import TransformersModel

NAMES = ["heart", "star", "anchor", "cloud"]
PROMPTS = [f"a photo of a {name}." for name in NAMES]
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
NEEDS_TRANSFORMERS = {"open_clip-hf-text", *(f"transformers-{kind}" for kind in TRANSFORMERS)}

every_model = pytest.mark.parametrize("kind", SAVERS)
every_open_clip = pytest.mark.parametrize("kind", [f"open_clip-{kind}" for kind in OPEN_CLIP])
every_transformers = pytest.mark.parametrize("kind", [f"transformers-{kind}" for kind in TRANSFORMERS])


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Directory and loaded model by kind, made when first asked for."""
    folder = tmp_path_factory.mktemp("zoo")
    made: dict[str, tuple[Path, OpenClipModel | TransformersModel]] = {}

    def get(kind: str):
        if kind in NEEDS_TRANSFORMERS:
            pytest.importorskip("transformers")
        if kind not in made:
            directory = SAVERS[kind](folder)
            made[kind] = directory, load_model(str(directory))
        return made[kind]

    return get


@every_model
def test_methods_of_every_kind_run_with_it(kind, zoo, images):
    """One that trains nothing, one that trains the image encoder, one a prompt, and one both encoders."""
    _, model = zoo(kind)
    classifier = ZeroShotClassifier(model, NAMES)
    normalisation = [name for name, layer in model.image_encoder.named_modules() if isinstance(layer, nn.BatchNorm2d)]
    for name in ("clip", "tent", "tpt", "bat"):
        method = METHODS.get(name)(classifier, debias=Panda(beta=0.5), **({"views": 2} if name == "tpt" else {}))
        assert method.adapt(images[:4]).shape == (4, 4), name
        if name == "tent" and kind in ("open_clip-resnet", "open_clip-mobileclip"):
            assert normalisation and {f"image.{layer}.weight" for layer in normalisation} <= set(method.adapted)


@every_model
def test_it_keeps_the_protocol(kind, zoo):
    _, model = zoo(kind)
    assert isinstance(model, PromptableModel)
    assert check_model(model) == []


@every_model
def test_a_prompt_can_be_learned(kind, zoo):
    """TPT's path: the gradient of a text feature with respect to each word of the prompt, and none for padding."""
    _, model = zoo(kind)
    tokens = model.tokenize(PROMPTS)
    embedded = model.embed_tokens(tokens).detach().requires_grad_(True)
    encoded = model.encode_embedded(embedded, tokens)
    with torch.no_grad():
        torch.testing.assert_close(encoded.detach(), model.encode_text(PROMPTS), **CLOSE)
    (gradient,) = torch.autograd.grad(encoded.square().sum(), embedded)
    assert (gradient[:, 1:5].abs().sum(dim=2) > 0).all()


@every_open_clip
def test_features_are_open_clips_own(kind, zoo, images):
    directory, model = zoo(kind)
    theirs, _, transform = open_clip.create_model_and_transforms(f"local-dir:{directory}")
    theirs.eval()
    from PIL import Image

    big = F.interpolate(images[:2].float(), (80, 96), mode="nearest").byte()
    for batch, limit in ((images[:2], 1e-5 if model.image_size == 32 else 0.05), (big, 0.05)):
        pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in batch]
        with torch.no_grad():
            expected = theirs.encode_image(torch.stack([transform(picture) for picture in pictures]))
            got = model.encode_image(model.prepare(batch))
        if kind == "open_clip-coca":  # which normalises unless told otherwise
            got = F.normalize(got, dim=-1)
        # Other sizes: Pillow rounds to bytes in between, see test_preprocessing.
        assert (got - expected).norm() / expected.norm() < limit
    tokenizer = open_clip.get_tokenizer(f"local-dir:{directory}")
    with torch.no_grad():
        expected = theirs.encode_text(tokenizer(PROMPTS), normalize=True)
        torch.testing.assert_close(F.normalize(model.encode_text(PROMPTS), dim=-1), expected, **CLOSE)
    assert model.logit_scale == pytest.approx(theirs.logit_scale.exp().item())


@every_transformers
def test_features_are_transformers_own(kind, zoo, images):
    transformers = pytest.importorskip("transformers")
    directory, model = zoo(kind)
    theirs = transformers.AutoModel.from_pretrained(directory).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    text = tokenizer(PROMPTS, padding="max_length" if "siglip" in kind else True, return_tensors="pt")
    if "siglip" in kind:
        text.pop("attention_mask", None)  # as these were trained
    with torch.no_grad():
        image = theirs.get_image_features(**processor(images=list(images[:2]), return_tensors="pt"))
        text = theirs.get_text_features(**text)
        ours = model.encode_image(model.prepare(images[:2]))
        torch.testing.assert_close(ours, getattr(image, "pooler_output", image), **CLOSE)
        torch.testing.assert_close(model.encode_text(PROMPTS), getattr(text, "pooler_output", text), **CLOSE)
    assert model.logit_scale == pytest.approx(theirs.logit_scale.exp().item())
    torch.testing.assert_close(model.mean.flatten(), torch.tensor(processor.image_mean))


def test_oblong_pictures_are_framed_as_transformers_does(zoo):
    transformers = pytest.importorskip("transformers")
    pictures = torch.randint(256, (2, 3, 48, 80), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for kind in ("transformers-clip", "transformers-siglip"):
        directory, model = zoo(kind)
        processor = transformers.AutoImageProcessor.from_pretrained(directory)
        expected = processor(images=list(pictures), return_tensors="pt")["pixel_values"]
        assert (model.pixels(model.prepare(pictures)) - expected).abs().mean() < 0.02


# --- both libraries with the same weights -----------------------------------------------------------------------------


def as_open_clip(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of transformers' CLIP under the names of open_clip's."""
    fixed = {
        "visual.class_embedding": "vision_model.embeddings.class_embedding",
        "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
        "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
        "visual.ln_pre": "vision_model.pre_layrnorm",
        "visual.ln_post": "vision_model.post_layernorm",
        "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
        "positional_embedding": "text_model.embeddings.position_embedding.weight",
        "ln_final": "text_model.final_layer_norm",
        "logit_scale": "logit_scale",
    }
    out = {"visual.proj": state["visual_projection.weight"].T, "text_projection": state["text_projection.weight"].T}
    for ours, theirs in fixed.items():
        for end in (".weight", ".bias") if theirs + ".weight" in state else ("",):
            out[ours + end] = state[theirs + end]
    towers = {"visual.transformer": "vision_model", "transformer": "text_model"}
    parts = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    parts["attn.out_proj"] = "self_attn.out_proj"
    for tower, theirs in towers.items():
        for layer in range(2):
            for end in ("weight", "bias"):
                block = f"{theirs}.encoder.layers.{layer}"
                for part, name in parts.items():
                    out[f"{tower}.resblocks.{layer}.{part}.{end}"] = state[f"{block}.{name}.{end}"]
                joined = [state[f"{block}.self_attn.{letter}_proj.{end}"] for letter in "qkv"]
                out[f"{tower}.resblocks.{layer}.attn.in_proj_{end}"] = torch.cat(joined)
    return out


def test_both_adapters_agree_on_converted_weights(zoo, images):
    _, theirs = zoo("transformers-clip")
    clip = open_clip.CLIP(**OPEN_CLIP["vit"]["model_cfg"])
    clip.load_state_dict(as_open_clip(theirs.network.state_dict()))
    open_clip.set_model_preprocess_cfg(
        clip, {"size": 32, "mean": open_clip.OPENAI_DATASET_MEAN, "std": open_clip.OPENAI_DATASET_STD}
    )
    ours = OpenClipModel(clip, open_clip.SimpleTokenizer(context_length=77), name="converted")
    with torch.no_grad():
        prepared = ours.prepare(images[:4])
        torch.testing.assert_close(ours.encode_image(prepared), theirs.encode_image(prepared), **CLOSE)
        torch.testing.assert_close(ours.encode_text(PROMPTS), theirs.encode_text(PROMPTS), **CLOSE)
    debias = Panda(beta=0.5)
    for name in ("clip", "tent", "bat"):
        both = [METHODS.get(name)(ZeroShotClassifier(model, NAMES), debias=debias) for model in (ours, theirs)]
        first, second = (method.adapt(images[:8]) for method in both)
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)


def test_a_thousand_class_names_are_tokenised_alike():
    pytest.importorskip("transformers")
    prompts = [f"a photo of a {name}." for name in open_clip.IMAGENET_CLASSNAMES]
    assert len(prompts) == 1000
    theirs = clip_tokenizer(77)(prompts, padding="max_length", max_length=77)
    ours = open_clip.SimpleTokenizer(context_length=77)(prompts)
    for row, ids in zip(ours.tolist(), theirs["input_ids"], strict=True):
        end = row.index(49407) + 1  # behind the end of the text, one pads with zeros and the other with ends
        assert row[:end] == ids[:end]


def test_template_ensembles_are_those_of_open_clips_zero_shot_classifier(zoo):
    _, model = zoo("open_clip-vit")
    templates = open_clip.OPENAI_IMAGENET_TEMPLATES
    assert len(templates) == 80 and callable(templates[0])
    ours = ZeroShotClassifier(model, NAMES, templates)
    theirs = open_clip.build_zero_shot_classifier(model.clip, model.tokenizer, NAMES, templates)
    torch.testing.assert_close(ours.class_embeddings, theirs.T, **CLOSE)


# --- SigLIP -----------------------------------------------------------------------------------------------------------


def test_siglips_bias_cancels_and_its_scale_is_the_temperature(zoo, images):
    _, model = zoo("open_clip-siglip")
    classifier = ZeroShotClassifier(model, NAMES)
    with torch.no_grad():
        cosines = F.normalize(model.encode_image(model.prepare(images)), dim=-1) @ classifier.class_embeddings.T
        pairs = torch.sigmoid(model.clip.logit_scale.exp() * cosines + model.clip.logit_bias).double()
        logits = METHODS.get("clip")(classifier).adapt(images)
    assert torch.equal(pairs.argmax(dim=1), logits.argmax(dim=1))
    # Probability of each class, given that exactly one of the four independent sigmoids is true.
    alone = torch.stack(
        [pairs[:, k] * (1 - pairs[:, [j for j in range(4) if j != k]]).prod(dim=1) for k in range(4)], dim=1
    )
    expected = alone / alone.sum(dim=1, keepdim=True)
    torch.testing.assert_close(logits.softmax(dim=1).double(), expected, rtol=1e-4, atol=1e-5)
