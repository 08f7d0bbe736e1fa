"""
Which digit came first? A language model that answers questions about hundreds of frames, trained from random weights.

Three handwritten digits follow each other along the border of a board, for 240 frames in all, each for at least 40 of
them. A small vision tower, a Q-Former with a memory of eight frames and a small Llama learn together which digit came
first and which came last. The Q-Former and the Llama both read the question; the loss is that of the answer.

    python examples/ask_long_video.py OUTPUT_DIR [--short-steps 400] [--long-steps 60]

Training begins with clips of twelve frames, which take a fraction of the time. Writes the model and `answers.json`:
the share of right answers of `generate` for digits that training has not seen; whether the saved model answers the
same; and the share of right answers if the memory is filled with the other question, and asked this one afterwards.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch.utils.data import Dataset
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_video import (
    MemoryBankQFormerConfig,
    MemoryBankQFormerForConditionalGeneration,
    MemoryBankQFormerProcessor,
    VideoClipProcessor,
    VideoViTConfig,
)

NUM_FRAMES, NUM_SHORT_FRAMES, BANK_LENGTH = 240, 12, 8
CELLS, CELL_SIZE = 4, 8
BORDER = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (3, 3), (3, 2), (3, 1), (3, 0), (2, 0), (1, 0)]
NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
QUESTIONS = {"which digit came first ?": 0, "which digit came last ?": -1}


class DigitStories(Dataset):
    """
    Clips with a question and its answer, as the model takes them.

    Args:
        processor: prepares frames and texts.
        size: number of clips.
        held_out: whether they show scans that are not used for training.
        num_frames: of a clip.
        seed: determines every clip.
    """

    def __init__(
        self, processor: MemoryBankQFormerProcessor, size: int, held_out: bool, num_frames: int, seed: int = 0
    ):
        scans, digits = load_digits(return_X_y=True)
        chosen = (np.random.default_rng(0).random(len(scans)) < 0.2) == held_out
        scans = np.rint(scans[chosen] * (255 / 16)).reshape(-1, CELL_SIZE, CELL_SIZE).astype(np.uint8)
        self.scans = [scans[digits[chosen] == digit] for digit in range(10)]
        self.processor, self.size, self.num_frames, self.seed = processor, size, num_frames, seed

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        clip, digits = self.story(index)
        question = self.question(index)
        inputs = self.processor(
            clip,
            question,
            text_target=NAMES[digits[QUESTIONS[question]]],
            do_sample_frames=False,
            return_tensors="pt",
        )
        return {name: tensor[0] for name, tensor in inputs.items()}

    def question(self, index: int) -> str:
        return list(QUESTIONS)[index % len(QUESTIONS)]

    def story(self, index: int) -> tuple[np.ndarray, list[int]]:
        """A clip (num_frames, 32, 32, 3) uint8 and its three digits in order."""
        rng = np.random.default_rng([self.seed, index])
        digits = rng.choice(10, size=3, replace=False).tolist()
        scans = [rng.choice(self.scans[digit]) for digit in digits]
        shortest = self.num_frames // 6
        room = self.num_frames - 3 * shortest
        cuts = np.sort(rng.integers(0, room, size=2, endpoint=True)) + [shortest, 2 * shortest]
        first_cell, direction = rng.integers(len(BORDER)), rng.choice([-1, 1])
        clip = rng.integers(0, 12, (self.num_frames, CELLS * CELL_SIZE, CELLS * CELL_SIZE), dtype=np.uint8)
        for t, frame in enumerate(clip):
            row, column = BORDER[(first_cell + direction * (t * len(BORDER) // self.num_frames)) % len(BORDER)]
            cell = frame[row * CELL_SIZE : (row + 1) * CELL_SIZE, column * CELL_SIZE : (column + 1) * CELL_SIZE]
            np.maximum(cell, scans[int((t >= cuts).sum())], out=cell)
        return clip[..., None].repeat(3, axis=-1), digits


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each word."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *" ".join(QUESTIONS).split(), *NAMES]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(dict.fromkeys(words))}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def make_model() -> tuple[MemoryBankQFormerForConditionalGeneration, MemoryBankQFormerProcessor]:
    """A vision tower that only embeds patches, two layers of Q-Former, and two of Llama."""
    video_processor = VideoClipProcessor(do_resize=False, do_center_crop=False, image_mean=0.5, image_std=0.5)
    processor = MemoryBankQFormerProcessor(video_processor, make_tokenizer(), make_tokenizer(), num_query_tokens=4)
    tokenizer = processor.tokenizer
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    vision_config = VideoViTConfig(
        **sizes,
        image_size=CELLS * CELL_SIZE,
        patch_size=CELL_SIZE,
        num_frames=1,
        tubelet_size=1,
        num_hidden_layers=0,
        use_mean_pooling=False,
        initializer_range=0.1,
    )
    text_config = LlamaConfig(
        **sizes,
        num_hidden_layers=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=64,
        initializer_range=0.1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = MemoryBankQFormerConfig(
        vision_config=vision_config,
        qformer_config={**sizes, **dropout, "vocab_size": len(tokenizer), "num_hidden_layers": 2},
        text_config=text_config,
        num_query_tokens=processor.num_query_tokens,
        memory_bank_length=BANK_LENGTH,
        # As many rows as a short clip has frames. In a long clip, several frames share a row.
        max_num_frames=NUM_SHORT_FRAMES,
        frame_position_overflow="scale",
        expected_num_frames=NUM_SHORT_FRAMES,
        video_token_id=processor.video_token_id,
        # Small layers need larger weights than the published ones for their attention to differ from a mean.
        initializer_range=0.1,
    )
    model = MemoryBankQFormerForConditionalGeneration(config)
    # The published models begin with zeros, and learn the order of frames from far more clips.
    torch.nn.init.normal_(model.base_model.frame_position_embeddings.weight, std=0.5)
    return model, processor


def train(
    model: MemoryBankQFormerForConditionalGeneration,
    processor: MemoryBankQFormerProcessor,
    num_frames: int,
    steps: int,
    batch_size: int,
    learning_rate: float,
    output_dir: Path,
) -> None:
    model.config.expected_num_frames = num_frames
    arguments = TrainingArguments(
        output_dir=str(output_dir / "training"),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=steps // 10,
        weight_decay=0.01,
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    data = DigitStories(processor, batch_size * steps, held_out=False, num_frames=num_frames, seed=num_frames)
    Trainer(model, arguments, train_dataset=data).train()


@torch.no_grad()
def answers(
    model: MemoryBankQFormerForConditionalGeneration,
    processor: MemoryBankQFormerProcessor,
    data: DigitStories,
    ask_later: bool = False,
    batch_size: int = 50,
) -> list[str]:
    """
    The answers that the model generates, a word for each clip.

    Args:
        ask_later: whether the memory is filled with the other question, and replayed with the one to answer.
    """
    model.eval()
    found: list[str] = []
    for start in range(0, len(data), batch_size):
        numbers = range(start, min(start + batch_size, len(data)))
        clips, questions = [data.story(i)[0] for i in numbers], [data.question(i) for i in numbers]
        inputs = processor(clips, questions, do_sample_frames=False, return_tensors="pt").to(model.device)
        if ask_later:
            other = processor(qformer_text=[data.question(i + 1) for i in numbers], return_tensors="pt")
            memory = model.base_model(inputs.pop("pixel_values"), **other.to(model.device)).memory
            ids = model.ask(memory, **inputs, max_new_tokens=3, do_sample=False)
        else:
            ids = model.generate(**inputs, max_new_tokens=3, do_sample=False)
        found += processor.batch_decode(ids, skip_special_tokens=True)
    return found


def accuracy(found: list[str], data: DigitStories) -> float:
    expected = [NAMES[data.story(i)[1][QUESTIONS[data.question(i)]]] for i in range(len(data))]
    return float(np.mean([answer.strip() == name for answer, name in zip(found, expected, strict=True)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output_dir", type=Path)
    parser.add_argument("--short-steps", type=int, default=400, help="optimizer steps on short clips")
    parser.add_argument("--long-steps", type=int, default=60, help="then on long ones")
    parser.add_argument("--test-clips", type=int, default=400)
    arguments = parser.parse_args()
    arguments.output_dir.mkdir(parents=True, exist_ok=True)

    set_seed(0)
    model, processor = make_model()
    train(model, processor, NUM_SHORT_FRAMES, arguments.short_steps, 64, 3e-3, arguments.output_dir)
    train(model, processor, NUM_FRAMES, arguments.long_steps, 32, 5e-4, arguments.output_dir)
    model.save_pretrained(arguments.output_dir)
    processor.save_pretrained(arguments.output_dir)

    data = DigitStories(processor, arguments.test_clips, held_out=True, num_frames=NUM_FRAMES, seed=1)
    found = answers(model, processor, data)
    saved = AutoModelForImageTextToText.from_pretrained(arguments.output_dir)
    found_by_saved = answers(saved, AutoProcessor.from_pretrained(arguments.output_dir), data)
    results = {
        "accuracy": accuracy(found, data),
        "the saved model answers the same": found_by_saved == found,
        "accuracy when asked later": accuracy(answers(model, processor, data, ask_later=True), data),
    }
    (arguments.output_dir / "answers.json").write_text(json.dumps(results, indent=1) + "\n")
    for name, value in results.items():
        print(f"{name}: {value if isinstance(value, bool) else format(value, '.1%')}")


if __name__ == "__main__":
    main()
