"""Small random models of every architecture that loads, saved in the formats that users have.

    python tests/model_zoo.py FOLDER     writes one directory per model, each of which is a `--model`

A model of the real architecture is too large for a test; what differs between architectures (towers, poolings, masks,
normalisation layers, preprocessing) does not depend on its size.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.tokenizer import bytes_to_unicode
from safetensors.torch import save_file

WORDS = "a photo of the heart star anchor cloud art bad sketch ."
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
SHORT_TEXT = TEXT | {"context_length": 16}
OPENAI = {"mean": list(open_clip.OPENAI_DATASET_MEAN), "std": list(open_clip.OPENAI_DATASET_STD)}
SIGLIP = {"mean": [0.5] * 3, "std": [0.5] * 3, "resize_mode": "squash"}

VIT = {"image_size": 32, "patch_size": 8, "width": 32, "head_width": 16, "layers": 2}


def timm_tower(name: str, **more: Any) -> dict[str, Any]:
    return {"timm_model_name": name, "timm_model_pretrained": False, "image_size": 32, **more}


def siglip_text() -> dict[str, Any]:
    pooling = {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
    return SHORT_TEXT | pooling | {"norm_kwargs": {"eps": 1e-6}}


OPEN_CLIP: dict[str, dict[str, Any]] = {
    "vit": {"model_cfg": {"embed_dim": 16, "quick_gelu": True, "vision_cfg": VIT, "text_cfg": TEXT}},
    "resnet": {
        "model_cfg": {
            "embed_dim": 16,
            "vision_cfg": {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "head_width": 16, "patch_size": None},
            "text_cfg": TEXT,
        }
    },
    "convnext": {
        "model_cfg": {
            "embed_dim": 16,
            "vision_cfg": timm_tower("test_convnext", timm_pool="", timm_proj="linear"),
            "text_cfg": TEXT,
        }
    },
    "siglip": {
        "model_cfg": {
            "embed_dim": 64,
            "init_logit_bias": -10,
            "custom_text": True,
            "vision_cfg": VIT | {"pool_type": "avg", "no_ln_pre": True},
            "text_cfg": siglip_text(),
        },
        "preprocess_cfg": SIGLIP,
    },
    "mobileclip": {
        "model_cfg": {
            "embed_dim": 32,
            "custom_text": True,
            "vision_cfg": timm_tower("fastvit_t8", timm_pool="avg", timm_proj=None) | {"image_size": 64},
            "text_cfg": SHORT_TEXT | {"no_causal_mask": True},
        },
        "preprocess_cfg": {"mean": [0.0] * 3, "std": [1.0] * 3, "interpolation": "bilinear"},
    },
    "coca": {
        "model_cfg": {
            "embed_dim": 16,
            "custom_text": True,
            "vision_cfg": VIT | {"attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True},
            "text_cfg": SHORT_TEXT | {"context_length": 15, "embed_cls": True, "output_tokens": True},
            "multimodal_cfg": SHORT_TEXT | {"context_length": 15, "attn_pooler_heads": 2},
        }
    },
    "hf-text": {
        "model_cfg": {
            "embed_dim": 16,
            "vision_cfg": VIT,
            "text_cfg": {"hf_pooler_type": "mean_pooler", "hf_proj_type": "mlp", "context_length": 16},
        }
    },
}
TRANSFORMERS = ("clip", "siglip", "siglip2", "chinese_clip")


def save_open_clip(kind: str, folder: Path) -> Path:
    """A directory that open_clip itself would load as `local-dir:`."""
    directory = folder / f"open_clip-{kind}"
    directory.mkdir(parents=True)
    config = {"preprocess_cfg": OPENAI, **json.loads(json.dumps(OPEN_CLIP[kind]))}
    if kind == "hf-text":
        save_bert(directory)
        config["model_cfg"]["text_cfg"] |= {"hf_model_name": str(directory), "hf_tokenizer_name": str(directory)}
    (directory / "open_clip_config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    clip = open_clip.create_model(f"local-dir:{directory}", load_weights=False, pretrained_text=False)
    spread(clip)
    weights = {name: tensor.detach().clone().contiguous() for name, tensor in clip.state_dict().items()}
    save_file(weights, directory / "open_clip_model.safetensors")
    return directory


@torch.no_grad()
def spread(network: torch.nn.Module) -> None:
    """Random weights that tell images and texts apart a little, as trained ones do."""
    for name, parameter in network.named_parameters():
        if parameter.ndim == 1 and name.endswith("weight"):
            parameter += 0.1 * torch.randn_like(parameter)
        if name.endswith(("token_embedding.weight", "word_embeddings.weight", "positional_embedding")):
            parameter.copy_(torch.randn_like(parameter))


def clip_vocabulary() -> tuple[dict[str, int], list[str]]:
    """The vocabulary and merges of CLIP's tokenizer in the form of transformers, from the file that open_clip ships."""
    path = Path(open_clip.__file__).with_name("bpe_simple_vocab_16e6.txt.gz")
    with gzip.open(path) as file:
        merges = file.read().decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    letters = list(bytes_to_unicode().values())
    words = [*letters, *(letter + "</w>" for letter in letters), *("".join(merge.split()) for merge in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return {word: number for number, word in enumerate(words)}, merges


def clip_tokenizer(length: int) -> Any:
    import transformers

    vocabulary, merges = clip_vocabulary()
    pairs = [tuple(merge.split()) for merge in merges]
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=pairs, model_max_length=length)


def bert_tokenizer() -> Any:
    import transformers

    letters = sorted({letter for letter in WORDS if letter.isalpha()})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *dict.fromkeys(WORDS.split()), *letters]
    tokens += [f"##{letter}" for letter in map(chr, range(97, 123))] + [chr(c) for c in range(97, 123)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return transformers.BertTokenizer(vocab=vocabulary, model_max_length=16)


def gemma_tokenizer(length: int) -> Any:
    """In the form of SigLIP 2's, padded on the right as the published ones are; its words are single letters."""
    import transformers

    letters = ["\u2581", ".", *map(chr, range(97, 123))]
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    vocabulary = {token: number for number, token in enumerate([*specials, *letters])}
    return transformers.Siglip2Tokenizer(vocab=vocabulary, merges=[], padding_side="right", model_max_length=length)


def save_bert(directory: Path) -> None:
    """A tiny text encoder with its tokenizer, as open_clip joins them to an image tower."""
    import transformers

    tokenizer = bert_tokenizer()
    tokenizer.save_pretrained(directory)
    bert = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16,
    )  # fmt: skip
    bert.save_pretrained(directory)


def save_transformers(kind: str, folder: Path) -> Path:
    """A directory that `save_pretrained` of transformers wrote."""
    import transformers as t

    directory = folder / f"transformers-{kind}"
    torch.manual_seed(0)
    layers = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision = layers | {"image_size": 32, "patch_size": 8}
    text = layers | {"vocab_size": 49408, "max_position_embeddings": 16}
    ends = {"bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 49407}
    square = {"height": 32, "width": 32}
    if kind == "clip":
        text = text | ends | {"max_position_embeddings": 77}
        network = t.CLIPModel(t.CLIPConfig(vision_config=vision, text_config=text, projection_dim=16))
        processor, tokenizer = t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=square), clip_tokenizer(77)
    elif kind == "siglip":
        network = t.SiglipModel(t.SiglipConfig(vision_config=vision, text_config=text | ends))
        processor, tokenizer = t.SiglipImageProcessor(size=square), clip_tokenizer(16)
    elif kind == "siglip2":
        vision = layers | {"patch_size": 8, "num_patches": 16}
        tokenizer = gemma_tokenizer(32)
        text = layers | {"vocab_size": len(tokenizer), "max_position_embeddings": 32}
        network = t.Siglip2Model(t.Siglip2Config(vision_config=vision, text_config=text))
        processor = t.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    else:
        tokenizer = bert_tokenizer()
        text = layers | {"vocab_size": len(tokenizer), "max_position_embeddings": 16}
        network = t.ChineseCLIPModel(t.ChineseCLIPConfig(vision_config=vision, text_config=text, projection_dim=16))
        processor = t.ChineseCLIPImageProcessor(size=square, do_center_crop=False)
    spread(network)
    for part in (network, tokenizer, processor):
        part.save_pretrained(directory)
    return directory


SAVERS: dict[str, Callable[[Path], Path]] = {
    **{f"open_clip-{kind}": lambda folder, kind=kind: save_open_clip(kind, folder) for kind in OPEN_CLIP},
    **{f"transformers-{kind}": lambda folder, kind=kind: save_transformers(kind, folder) for kind in TRANSFORMERS},
}


if __name__ == "__main__":
    for save in SAVERS.values():
        print(save(Path(sys.argv[1])))
