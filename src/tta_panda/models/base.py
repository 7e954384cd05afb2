"""What a model has to offer, and the classifiers that any such model gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError

DEFAULT_TEMPLATE = "a photo of a {}."
PROMPTS_PER_PASS = 256


@runtime_checkable
class ImageModel(Protocol):
    """An image encoder, as all methods need it.

    Implementations are `torch.nn.Module`s in eval mode whose parameters do not require gradients; methods that train
    work on copies. Images are (B, 3, H, W), floats in [0, 1] or uint8, of any size; the model brings them to its own
    size and normalisation.
    """

    name: str
    image_size: int
    """Side in pixels of the square images that the encoder sees."""
    negative_patch_size: int
    """Side in pixels of the patches that Panda cuts when it is not told otherwise."""

    @property
    def image_encoder(self) -> nn.Module:
        """The part that may adapt: of its normalisation layers, weight and bias. Give a smaller part to adapt less."""

    @property
    def device(self) -> torch.device: ...

    def prepare(self, images: Tensor) -> Tensor:
        """Floats in [0, 1] of (B, 3, image_size, image_size) on the model's device; a no-op for images that are."""

    def encode_image(self, images: Tensor) -> Tensor:
        """Embeddings (B, D), not normalised."""


@runtime_checkable
class VisionLanguageModel(ImageModel, Protocol):
    """An image and a text encoder with a common embedding space."""

    @property
    def text_encoder(self) -> nn.Module | None:
        """What may adapt of the text side, for methods that adapt both; None where texts are embedded elsewhere."""

    @property
    def logit_scale(self) -> float:
        """What cosine similarities are multiplied with to become logits."""

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Embeddings (len(texts), D), not normalised."""


@runtime_checkable
class PromptableModel(Protocol):
    """A model whose text encoder also takes embeddings in the place of tokens, for methods that learn a prompt.

    `encode_embedded(embed_tokens(tokens), tokens)` is `encode_text` of the texts behind the tokens.
    """

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        """Token ids (N, L), cut to the longest text where what follows it cannot matter."""

    def embed_tokens(self, tokens: Tensor) -> Tensor:
        """Input embeddings (N, L, W) of tokens (N, L)."""

    def encode_embedded(self, embedded: Tensor, tokens: Tensor) -> Tensor:
        """Text embeddings (N, D) from input embeddings; `tokens` says where each text ends."""


class Classifier(ABC):
    """Class embeddings that image features are compared with. Methods know classifiers by this much.

    Args:
        model: the image encoder.
        class_names: two or more different names; underscores are read as spaces.
    """

    text_features: Tensor  # (K, D), the class embeddings; of texts in the classic case
    logit_scale: float
    bias: Tensor | float = 0.0  # (K,), added to logits

    def __init__(self, model: ImageModel, class_names: Sequence[str]):
        self.model = model
        self.class_names = _checked_names(class_names)

    @abstractmethod
    def embed(self, raw: Tensor) -> Tensor:
        """Where embeddings (..., D) are compared: what the encoder gives, at unit length or as it is."""

    def logits(self, features: Tensor, text_features: Tensor | None = None) -> Tensor:
        """(..., K) from image features (..., D), which are used as they are: debiased ones are not unit.

        Args:
            features: of images or views.
            text_features: (..., K, D) in the place of the classifier's own, for methods that adapt them.
        """
        embeddings = self.text_features if text_features is None else text_features
        return self.logit_scale * features @ embeddings.mT + self.bias


class ZeroShotClassifier(Classifier):
    """Class names turned into the rows of a linear classifier on unit image embeddings.

    Args:
        model: the encoders.
        class_names: two or more different names; underscores are read as spaces.
        templates: prompts with a `{}` for the name. The embeddings of several are averaged.
    """

    model: VisionLanguageModel

    def __init__(
        self, model: VisionLanguageModel, class_names: Sequence[str], templates: Sequence[str] = (DEFAULT_TEMPLATE,)
    ):
        super().__init__(model, class_names)
        self.templates = _checked_templates(templates)
        self.logit_scale = model.logit_scale
        # Not in the caller's inference mode, if any: methods that train use these features in their graphs.
        with torch.inference_mode(False), torch.no_grad():
            self.text_features = self.encode_prompts(model)  # (K, D), unit

    def encode_prompts(self, model: VisionLanguageModel) -> Tensor:
        """Unit text features (K, D) by a model, with gradient where the caller's mode and the model allow it."""
        prompts = [template.format(name) for template in self.templates for name in self.class_names]
        encoded = in_chunks(lambda piece: model.encode_text(prompts[piece]), len(prompts), PROMPTS_PER_PASS)
        per_template = self.embed(encoded).view(len(self.templates), len(self.class_names), -1)
        return F.normalize(per_template.mean(dim=0), dim=-1)

    def embed(self, raw: Tensor) -> Tensor:
        return F.normalize(raw.float(), dim=-1)


def _checked_names(class_names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(class_names, str):
        raise InvalidInputError(f"class_names must be a list of names, got the single string {class_names!r}.")
    names = tuple(str(name).replace("_", " ").strip() for name in class_names)
    if len(names) < 2:
        raise InvalidInputError(f"A classifier needs at least two class names, got {list(names)}.")
    if not all(names):
        raise InvalidInputError("Class names must not be empty.")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidInputError(f"Class names must differ from each other; repeated: {', '.join(repeated)}.")
    return names


def _checked_templates(templates: Sequence[str]) -> tuple[str, ...]:
    templates = (templates,) if isinstance(templates, str) else tuple(templates)
    if not templates or not all("{}" in template for template in templates):
        raise InvalidInputError(
            f"Every template needs a {{}} where the class name goes, as in {DEFAULT_TEMPLATE!r}; got {list(templates)}."
        )
    return templates
