"""Wrap two encoders of your own as a model, check that it follows the protocol, and adapt it.

    python examples/own_encoder.py

The example uses a small image network of timm and a byte-level text encoder, both with random weights. On the command
line, `--model own_encoder:MyModel` selects the class, if called in the folder of this file.
"""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn

import tta_panda
from tta_panda.models.prepare import prepare_images


class MyModel(nn.Module):
    name, image_size, negative_patch_size, logit_scale = "my-model", 64, 16, 50.0

    def __init__(self) -> None:
        super().__init__()
        self.image_encoder = timm.create_model("test_resnet", num_classes=64)
        self.embedding = nn.Embedding(256, 64)
        layer = nn.TransformerEncoderLayer(64, nhead=4, batch_first=True)
        self.text_encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    def prepare(self, images: Tensor) -> Tensor:
        return prepare_images(images, self.image_size, self.device)

    def encode_image(self, prepared: Tensor) -> Tensor:
        return self.image_encoder((prepared - 0.45) / 0.225)

    def encode_text(self, texts: list[str]) -> Tensor:
        tokens = self.tokenize(texts)
        return self.encode_embedded(self.embed_tokens(tokens), tokens)

    def tokenize(self, texts: list[str]) -> Tensor:  # this and the next two are only needed for TPT
        rows = [torch.tensor(list(text.encode())) for text in texts]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device)

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens)

    def encode_embedded(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        present = (tokens != 0)[..., None]
        hidden = self.text_encoder(embedded, src_key_padding_mask=~present[..., 0])
        return (hidden * present).sum(dim=1) / present.sum(dim=1)


def main() -> None:
    model = MyModel()
    unsupported = tta_panda.check_model(model)  # raises an error that lists everything missing or wrong
    print("methods that this model does not support:", ", ".join(unsupported) or "none")
    classifier = tta_panda.ZeroShotClassifier(model, ["cat", "dog", "bird"])
    method = tta_panda.Tent(classifier, debias=tta_panda.Panda(beta=0.4))
    print(method.adapt(torch.rand(8, 3, 80, 100)).softmax(dim=1))


if __name__ == "__main__":
    main()
