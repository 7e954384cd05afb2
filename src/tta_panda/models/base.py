"""Protocols of models, what models of other libraries share, and the classifiers made from models."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tta_panda.chunks import in_chunks
from tta_panda.errors import InvalidInputError, ModelLoadError
from tta_panda.images import Framing
from tta_panda.models.checkpoints import weights_hash
from tta_panda.models.devices import AUTOCAST, Precision, full_precision
from tta_panda.models.prepare import check_prepared, prepare_images
from tta_panda.registry import Registry

Template = str | Callable[[str], str]
"""A prompt with `{}` for the class name, or a function from the name to the prompt."""

DEFAULT_TEMPLATE = "a photo of a {}."
PHOTO = (DEFAULT_TEMPLATE,)
MINT = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""Seven that OpenAI found for ImageNet; Mint uses them everywhere."""

TEMPLATES: Registry[Sequence[Template]] = Registry(
    "set of templates",
    {"photo": f"{__name__}:PHOTO", "mint": f"{__name__}:MINT", "openai": "open_clip:OPENAI_IMAGENET_TEMPLATES"},
)
"""Prompts for class names, by name. The embeddings of several are averaged."""

PAPER_PATCH_SIZE = 32
PROMPTS_PER_PASS = 256


@runtime_checkable
class ImageModel(Protocol):
    """An image encoder, as all methods need it.

    Implementations are `torch.nn.Module`s in eval mode whose parameters do not require gradients; methods that train
    work on copies. A batch is prepared once, and may then be encoded many times.
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
        """Check images (B, 3, H, W) of any size, uint8 or floats in [0, 1], and bring them to the model's input size.

        Returns float32 in [0, 1], (B, 3, image_size, image_size), on the model's device. Prepared images stay the same.
        """

    def encode_image(self, prepared: Tensor) -> Tensor:
        """Embeddings (B, D), not normalised, of images that `prepare` returned or that were made from such images."""


@runtime_checkable
class VisionLanguageModel(ImageModel, Protocol):
    """An image and a text encoder with a common embedding space."""

    @property
    def text_encoder(self) -> nn.Module | None:
        """What may adapt of the text side, for methods that adapt both; None where texts are embedded elsewhere."""

    @property
    def logit_scale(self) -> float:
        """The factor from cosine similarities to logits."""

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


def framing_of(model: ImageModel) -> int | Framing:
    """How a model resizes and crops pictures; models of one's own need only say their size."""
    return getattr(model, "framing", model.image_size)


# --- models of other libraries --------------------------------------------------------------------------------------


class ImageAdapter(nn.Module):
    """The base class of models of other libraries: images of any size become what the network was trained on.

    Args:
        name: what the model is called in messages and records.
        framing: how pictures of other sizes become the square that the network sees.
        mean: of the network's training images, per channel.
        std: the same, standard deviation.
    """

    precision: Precision = "fp32"
    """Of the encoders' computations; weights, gradients and features are float32 in any case."""
    preset: str | None = None
    """The settings that suit the model, if it has its own."""

    def __init__(self, name: str, framing: Framing, mean: Sequence[float], std: Sequence[float]):
        super().__init__()
        self.name = name
        self.framing = framing
        self.image_size = framing.size
        self.negative_patch_size = min(PAPER_PATCH_SIZE, framing.size // 2)  # half the side of small images
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(tuple(mean), dtype=torch.float32).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(tuple(std), dtype=torch.float32).view(3, 1, 1), persistent=False)

    def __repr__(self) -> str:
        facts = f"image_size={self.image_size}, device='{self.device}', precision={self.precision!r}"
        return f"{type(self).__name__}({self.name!r}, {facts})"

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def prepare(self, images: Tensor) -> Tensor:
        return prepare_images(images, self.framing, self.device)

    def pixels(self, prepared: Tensor) -> Tensor:
        """Prepared images normalised by the network's mean and standard deviation."""
        check_prepared(prepared, self.image_size)
        return ((prepared - self.mean) / self.std).contiguous(memory_format=self.memory_format)

    @functools.cached_property
    def memory_format(self) -> torch.memory_format:
        """Channels last for networks of several convolutions, which are faster with it."""
        convolutions = sum(isinstance(layer, nn.Conv2d) for layer in self.modules())
        return torch.channels_last if convolutions > 1 else torch.contiguous_format

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Compute in the encoders' precision; their outputs are converted to float32."""
        dtype = AUTOCAST[self.precision]
        return full_precision(self.device) if dtype is None else torch.autocast(self.device.type, dtype=dtype)


def square_side(size: int | Sequence[int], name: str) -> int:
    """The side of a network's input, given as a number or as height and width."""
    sides = [size] if isinstance(size, int) else list(size)
    if len(set(sides)) != 1:
        raise ModelLoadError(
            f"{name} takes images of {'x'.join(map(str, sides))} px, but only square inputs are supported. Load it "
            "with a square image size, if it has one."
        )
    return sides[0]


@contextlib.contextmanager
def embeddings_replaced(layer: nn.Module, embedded: Tensor) -> Iterator[None]:
    """Make a layer return `embedded`, so that the text encoder around it runs with its own masks and pooling."""
    handle = layer.register_forward_hook(lambda _layer, _tokens, _output: embedded)
    try:
        yield
    finally:
        handle.remove()


def first_embedding(network: nn.Module) -> nn.Module:
    """The layer that turns tokens into input embeddings: text encoders declare it before that of positions."""
    return next(module for module in network.modules() if isinstance(module, nn.Embedding))


# --- classifiers ----------------------------------------------------------------------------------------------------


class Classifier(ABC):
    """Class embeddings that image features are compared with; the interface that methods use.

    Args:
        model: the image encoder.
        class_names: two or more different names; underscores are read as spaces.
    """

    class_embeddings: Tensor  # (K, D), the class embeddings; of texts in the classic case
    logit_scale: float
    bias: Tensor | float = 0.0  # (K,), added to logits
    made_of: object = None
    """What the class embeddings were computed from, beside the model: prompts, or rows of a head."""

    def __init__(self, model: ImageModel, class_names: Iterable[str]):
        self.model = model
        self.class_names = _checked_names(class_names)

    def __repr__(self) -> str:
        model = self.model
        facts = f"classes={len(self.class_names)}, image_size={model.image_size}, device='{model.device}'"
        return f"{type(self).__name__}({model.name!r}, {facts})"

    @functools.cached_property
    def digest(self) -> str:
        """A short hash of the model's weights and of what the class embeddings were computed from."""
        content = f"{weights_hash(cast(nn.Module, self.model))} {self.made_of}"
        return hashlib.sha256(content.encode()).hexdigest()[:12]

    @functools.cached_property
    def directions(self) -> float:
        """The effective number of dimensions in which the class embeddings differ."""
        return count_directions(self.class_embeddings)

    @abstractmethod
    def embed(self, raw: Tensor) -> Tensor:
        """Embeddings (..., D) as they are compared: scaled to unit length, or unchanged for a linear head."""

    def logits(self, features: Tensor, class_embeddings: Tensor | None = None) -> Tensor:
        """Logits (..., K) of image features (..., D), which are not scaled: debiased ones are not of unit length.

        Methods that adapt the class embeddings pass theirs (..., K, D).
        """
        embeddings = self.class_embeddings if class_embeddings is None else class_embeddings
        return self.logit_scale * features @ embeddings.mT + self.bias

    def logits_from_raw(self, features: Tensor, raw: Tensor) -> Tensor:
        """`logits` with class embeddings (..., K, D) before `embed`."""
        return self.logits(features, self.embed(raw))


def count_directions(embeddings: Tensor) -> float:
    """The effective number of dimensions in which embeddings (K, D) differ: the participation ratio, at most K - 1."""
    apart = embeddings - embeddings.mean(dim=0)
    products = apart.T @ apart if len(apart) > apart.shape[1] else apart @ apart.T
    return max(1.0, float(products.trace() ** 2 / products.square().sum().clamp_min(1e-30)))


class ZeroShotClassifier(Classifier):
    """Class names turned into the rows of a linear classifier on unit image embeddings.

    Args:
        model: a `VisionLanguageModel`.
        class_names: two or more different names; underscores are read as spaces.
        templates: prompts with `{}` for the name, or functions from the name to the prompt, such as
            `open_clip.OPENAI_IMAGENET_TEMPLATES`. The embeddings of several are averaged.
    """

    model: VisionLanguageModel

    def __init__(
        self,
        model: ImageModel,
        class_names: Iterable[str],
        templates: Template | Sequence[Template] = DEFAULT_TEMPLATE,
    ):
        if not isinstance(model, VisionLanguageModel):
            raise InvalidInputError(
                f"{type(model).__name__} has no text encoder to read class names with. For a model with a linear head, "
                "use make_classifier(model, class_names)."
            )
        super().__init__(model, class_names)
        self.templates = _checked_templates(templates)
        self.logit_scale = model.logit_scale
        if not 0 < self.logit_scale < float("inf"):
            raise InvalidInputError(f"The logit scale of {model.name} must be positive, got {self.logit_scale}.")
        prompts = [_fill(template, name) for template in self.templates for name in self.class_names]
        self.made_of = prompts
        batches = [prompts[start : start + PROMPTS_PER_PASS] for start in range(0, len(prompts), PROMPTS_PER_PASS)]
        # Methods that adapt the text encoder encode the prompts for every batch of images, but tokens stay the same.
        self._prompts: list[list[str]] | list[Tensor] = batches
        if isinstance(model, PromptableModel):
            self._prompts = [model.tokenize(batch) for batch in batches]
        # Not in the caller's inference mode, if any: methods that train use these features in their graphs.
        with torch.inference_mode(False), torch.no_grad(), full_precision(model.device):
            self.class_embeddings = self.encode_prompts(model)  # (K, D), unit
        self._check_case()

    def encode_prompts(self, model: VisionLanguageModel) -> Tensor:
        """Unit text features (K, D) by the classifier's model or a trained copy, with gradient where it is trained."""

        def encode(piece: slice) -> Tensor:
            batch = self._prompts[piece.start]
            if not isinstance(batch, Tensor):
                return model.encode_text(batch)
            promptable = cast(PromptableModel, model)
            return promptable.encode_embedded(promptable.embed_tokens(batch), batch)

        encoded = in_chunks(encode, len(self._prompts), 1)
        per_template = self.embed(encoded).view(len(self.templates), len(self.class_names), -1)
        return F.normalize(per_template.mean(dim=0), dim=-1)

    def embed(self, raw: Tensor) -> Tensor:
        return F.normalize(raw.float(), dim=-1)

    def logits_from_raw(self, features: Tensor, raw: Tensor) -> Tensor:
        # Lengths divide the logits, not the embeddings: where every image has its own, these are many more numbers.
        lengths = torch.linalg.vector_norm(raw.float(), dim=-1)  # (..., K)
        logits: Tensor = self.logits(features, raw.float()) / lengths.clamp_min(1e-12)[..., None, :]
        return logits

    def _check_case(self) -> None:
        """Refuse names that differ in case only, unless the model sees it; CLIP does not."""
        first: dict[str, int] = {}
        for place, name in enumerate(self.class_names):
            twin = first.setdefault(name.lower(), place)
            if twin != place and torch.allclose(self.class_embeddings[twin], self.class_embeddings[place], atol=1e-5):
                raise InvalidInputError(
                    f"The class names {self.class_names[twin]!r} and {name!r} are the same to {self.model.name}: it "
                    "ignores case. Rename one of them."
                )


def _checked_names(class_names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(class_names, str) or not isinstance(class_names, Iterable):
        raise InvalidInputError(f"class_names must be a list of names, got {class_names!r}.")
    if isinstance(class_names, set | frozenset):
        raise InvalidInputError("class_names is a set, which has no order; write sorted(class_names).")
    given = tuple(class_names)
    if wrong := [name for name in given if not isinstance(name, str)]:
        raise InvalidInputError(f"Class names must be strings, got {wrong[0]!r}.")
    names = tuple(name.replace("_", " ").strip() for name in given)
    if len(names) < 2:
        raise InvalidInputError(f"A classifier needs at least two class names, got {list(names)}.")
    if not all(names):
        raise InvalidInputError("Class names must not be empty.")
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        raise InvalidInputError(f"Class names must differ from each other; repeated: {', '.join(repeated)}.")
    return names


def _checked_templates(templates: Template | Sequence[Template]) -> tuple[Template, ...]:
    found = (templates,) if isinstance(templates, str) or callable(templates) else tuple(templates)
    usable = [callable(template) or (isinstance(template, str) and "{}" in template) for template in found]
    if not all(usable) or not found:
        raise InvalidInputError(
            f"Every template is a string with {{}} for the class name, as in {DEFAULT_TEMPLATE!r}, or a function from "
            f"the class name to the prompt; got {list(found)}."
        )
    return found


def _fill(template: Template, name: str) -> str:
    prompt = template.replace("{}", name) if isinstance(template, str) else template(name)
    if not isinstance(prompt, str):
        raise InvalidInputError(f"A template must turn {name!r} into a string, got {prompt!r} from {template!r}.")
    return prompt
