"""Train the embedded model `mini`, a small open_clip ViT, on captioned pictures of symbols.

    python scripts/train_mini.py --work-dir build/mini            # train, or resume an interrupted run
    python scripts/train_mini.py --work-dir build/mini --export   # write the weights into the package

Step `s` draws its pictures from the generator `(seed, s)`, so a resumed run has the same pictures as an uninterrupted
one. The loss is CLIP's symmetric contrastive loss, but captions in a batch that describe the same concept are positives
of each other instead of false negatives. The first part of training drops half of the image tokens, which doubles the
speed (Li et al. 2023, "Scaling Language-Image Pre-training via Masking"). No corrupted image is used.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import cv2
import numpy as np
import open_clip
import torch
import torch.nn.functional as F
from captioned_scenes import draw_captioned
from open_clip.transformer import PatchDropout
from safetensors.torch import save_file
from torch.utils.data import DataLoader, Dataset

import tta_panda
from tta_panda.data.glyphs import VALIDATION_CLASSES, draw_symbol
from tta_panda.files import saving

MINI = Path(tta_panda.__file__).parent / "models" / "mini"
WEIGHTS = MINI / "mini.safetensors"
ARCHITECTURE = f"local-dir:{MINI}"
VALIDATION_SEED = 10_000


class CaptionedBatches(Dataset[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]):
    """Captioned training batches; item `s` is the batch of step `s`."""

    def __init__(self, steps: int, batch_size: int, seed: int):
        self.steps, self.batch_size, self.seed = steps, batch_size, seed
        self.tokenizer = open_clip.get_tokenizer(ARCHITECTURE)

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cv2.setNumThreads(1)
        rng = np.random.default_rng((self.seed, step))
        examples = [draw_captioned(rng) for _ in range(self.batch_size)]
        images = torch.from_numpy(np.stack([example.picture for example in examples])).permute(0, 3, 1, 2)
        numbers = {concept: i for i, concept in enumerate(dict.fromkeys(example.concept for example in examples))}
        concepts = torch.tensor([numbers[example.concept] for example in examples])
        return normalise(images), self.tokenizer([example.caption for example in examples]), concepts


def normalise(images: torch.Tensor) -> torch.Tensor:
    mean = torch.tensor(open_clip.OPENAI_DATASET_MEAN).view(3, 1, 1)
    std = torch.tensor(open_clip.OPENAI_DATASET_STD).view(3, 1, 1)
    return (images - mean) / std


def contrastive_loss(
    image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor, concepts: torch.Tensor
) -> torch.Tensor:
    same = (concepts[:, None] == concepts[None, :]).float()
    target = same / same.sum(1, keepdim=True)
    logits = scale * image @ text.T
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


@torch.no_grad()
def validation_accuracy(model: open_clip.CLIP, images_per_class: int = 50) -> float:
    """Measure the zero-shot accuracy on clean pictures of the validation symbols."""
    model.eval()
    rng = np.random.default_rng(VALIDATION_SEED)
    pictures = [draw_symbol(name, rng) for name in VALIDATION_CLASSES for _ in range(images_per_class)]
    tokens = open_clip.get_tokenizer(ARCHITECTURE)([f"a photo of a {name}." for name in VALIDATION_CLASSES])
    text = model.encode_text(tokens, normalize=True)
    image = model.encode_image(normalise(torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)), normalize=True)
    labels = torch.arange(len(VALIDATION_CLASSES)).repeat_interleave(images_per_class)
    model.train()
    return float(((image @ text.T).argmax(1) == labels).float().mean())


def learning_rate(step: int, steps: int, peak: float, warmup: int = 300) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))


def train(arguments: argparse.Namespace) -> None:
    work_dir: Path = arguments.work_dir
    work_dir.mkdir(parents=True, exist_ok=True)
    checkpoint = work_dir / "checkpoint.pt"

    torch.manual_seed(arguments.seed)
    model = open_clip.create_model(ARCHITECTURE, load_weights=False)
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
        fused=True,
    )
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]

    batches = CaptionedBatches(arguments.steps, arguments.batch_size, arguments.seed)
    loader = DataLoader(batches, batch_size=None, sampler=range(first, arguments.steps), num_workers=arguments.workers)
    model.train()
    unmasked_from = round(arguments.steps * arguments.masked_share)
    recent: list[tuple[float, float]] = []
    started = time.time()
    for step, (images, tokens, concepts) in enumerate(loader, start=first):
        model.visual.patch_dropout = PatchDropout(0.5) if step < unmasked_from else torch.nn.Identity()
        torch.manual_seed(step)  # PatchDropout draws from the global generator
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, arguments.steps, arguments.lr)
        image, text, scale = model(images, tokens)
        loss = contrastive_loss(image, text, scale, concepts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            model.logit_scale.clamp_(0, math.log(100))
        recent.append((loss.item(), scale.item()))

        done = step + 1
        if done % min(100, arguments.save_every) == 0 or done == arguments.steps:
            loss_mean, scale_mean = np.mean(recent, axis=0)
            recent.clear()
            entry = {"step": done, "loss": round(float(loss_mean), 4), "scale": round(float(scale_mean), 2)}
            if done % arguments.save_every == 0 or done == arguments.steps:
                entry["validation"] = validation_accuracy(model)
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
                with saving(checkpoint) as part:
                    torch.save(state, part)
            entry["seconds"] = round(time.time() - started)
            print(json.dumps(entry), flush=True)
            with (work_dir / "log.jsonl").open("a") as log:
                log.write(json.dumps(entry) + "\n")


def export(work_dir: Path) -> None:
    """Write the weights of the checkpoint into the package, as fp16 safetensors."""
    state = torch.load(work_dir / "checkpoint.pt", weights_only=True)
    weights = {name: tensor.half().contiguous() for name, tensor in state["model"].items()}
    save_file(weights, WEIGHTS, metadata={"step": str(state["step"])})
    print(f"{WEIGHTS}: {WEIGHTS.stat().st_size / 1e6:.1f} MB")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work-dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument(
        "--masked-share", type=float, default=0.6, help="fraction of steps that drop half of the tokens"
    )
    parser.add_argument("--save-every", type=int, default=500, help="steps between checkpoints")
    parser.add_argument("--workers", type=int, default=1, help="processes that draw pictures; 0 uses this process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--export", action="store_true", help="write the weights into the package instead of training")
    return parser


def main() -> None:
    arguments = make_parser().parse_args()
    if arguments.export:
        export(arguments.work_dir)
    else:
        train(arguments)


if __name__ == "__main__":
    main()
