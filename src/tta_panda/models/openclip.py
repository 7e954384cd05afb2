"""Models of the open_clip library behind the protocol of this one. `openclip_load` finds and loads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeGuard, cast

import open_clip
import torch
from torch import Tensor, nn

from tta_panda.errors import InvalidInputError, ModelLoadError
from tta_panda.images import Framing, Interpolation
from tta_panda.models.adapter import ImageAdapter, embeddings_replaced, first_embedding, square_side
from tta_panda.models.devices import Precision


class OpenClipModel(ImageAdapter):
    """An open_clip model behind the `VisionLanguageModel` protocol, with the prompt path of `PromptableModel`.

    SigLIP's `logit_bias` is not used: it is the same for all classes. If exactly one class is true, its sigmoids say
    which one with the probabilities softmax(logit_scale * cosines), so that the model's own scale is the temperature of
    entropies here, too.
    """

    def __init__(
        self,
        clip: nn.Module,
        tokenizer: Any,
        name: str,
        negative_patch_size: int | None = None,
        precision: Precision = "fp32",
    ):
        preprocessing = open_clip.get_model_preprocess_cfg(clip)
        framing = _framing(preprocessing, name)
        super().__init__(name, framing, preprocessing["mean"], preprocessing["std"], precision, negative_patch_size)
        self.clip = clip
        self.tokenizer = tokenizer
        self.to(next(clip.parameters()).device).eval().requires_grad_(False)

    @classmethod
    def wrap(cls, clip: nn.Module, tokenizer: Any, _processor: Any, name: str, precision: Precision) -> Self:
        """The model around a network that is in memory."""
        if tokenizer is None:
            raise InvalidInputError(
                f"{name} needs its tokenizer: wrap_model(network, tokenizer=open_clip.get_tokenizer('ViT-B-32')), with "
                "the architecture of the network."
            )
        return cls(clip, tokenizer, name, precision=precision)

    @property
    def image_encoder(self) -> nn.Module:
        return cast(nn.Module, self.clip.visual)

    @property
    def text_encoder(self) -> nn.Module:
        if isinstance(self.clip, open_clip.CLIP):  # whose text transformer has no module of its own
            return nn.ModuleDict({"transformer": self.clip.transformer, "ln_final": self.clip.ln_final})
        return cast(nn.Module, self.clip.text)

    @property
    def logit_scale(self) -> float:
        return float(cast(Tensor, self.clip.logit_scale).detach().exp())

    def encode_image(self, prepared: Tensor) -> Tensor:
        with self.autocast():  # CoCa normalises unless it is told not to
            return cast(Tensor, self.clip.encode_image(self.pixels(prepared), normalize=False)).float()  # type: ignore[operator]

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        tokens = self.tokenize(texts)
        return self.encode_embedded(self.embed_tokens(tokens), tokens)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        tokens = cast(Tensor, self.tokenizer(list(texts)).to(self.device))
        # Attention is causal and the embedding is read at the end-of-text token: what follows it cannot matter.
        return tokens[:, : int(tokens.argmax(dim=1).max()) + 1] if _reads_up_to_the_end(self.clip) else tokens

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self._token_embedding(tokens))

    def encode_embedded(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        clip = self.clip
        if not _reads_up_to_the_end(clip):
            with self.autocast(), embeddings_replaced(self._token_embedding, embedded):
                return cast(Tensor, clip.encode_text(tokens, normalize=False)).float()  # type: ignore[operator]
        # open_clip's own encode_text, for texts that are shorter than the model's context.
        length = embedded.shape[1]
        with self.autocast():
            x = embedded.to(clip.transformer.get_cast_dtype())  # (N, L, W)
            x = x + clip.positional_embedding[:length].to(x.dtype)
            x = clip.ln_final(clip.transformer(x, attn_mask=clip.attn_mask[:length, :length]))
            x = x[torch.arange(len(x), device=x.device), tokens.argmax(dim=1)]
            projection = clip.text_projection
            return cast(Tensor, projection(x) if isinstance(projection, nn.Linear) else x @ projection).float()

    @property
    def _token_embedding(self) -> nn.Module:
        if isinstance(self.clip, open_clip.CLIP):
            return cast(nn.Module, self.clip.token_embedding)
        return first_embedding(cast(nn.Module, self.clip.text))


def _reads_up_to_the_end(clip: nn.Module) -> TypeGuard[open_clip.CLIP]:
    """Whether this is the classic CLIP text transformer, causal and read at the end-of-text token."""
    return (
        isinstance(clip, open_clip.CLIP)
        and clip.attn_mask is not None
        and clip.text_pool_type == "argmax"
        and clip.text_projection is not None
    )


def _framing(preprocessing: dict[str, Any], name: str) -> Framing:
    mode = preprocessing.get("resize_mode") or "shortest"
    interpolation = preprocessing.get("interpolation") or "bicubic"
    if mode not in ("shortest", "squash") or interpolation not in ("bicubic", "bilinear"):
        raise ModelLoadError(
            f"{name} wants images resized by resize_mode={mode!r}, interpolation={interpolation!r}; supported are "
            "shortest and squash, bicubic and bilinear. Change its preprocess_cfg, and resize the images before."
        )
    size = square_side(preprocessing["size"], name)
    return Framing(size, squash=mode == "squash", interpolation=cast(Interpolation, interpolation))
