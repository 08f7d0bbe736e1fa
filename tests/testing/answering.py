"""A tiny model with a vision tower and a Llama, and its processor."""

import numpy as np
import torch
from transformers import InstructBlipVisionConfig, LlamaConfig

from hf_video import MemoryBankQFormerForConditionalGeneration, MemoryBankQFormerProcessor
from hf_video.processing import VideoClipProcessor
from tests.models.memory_bank_qformer.memory_bank_qformer_testing import SIZES, tiny_model
from tests.models.memory_bank_qformer.tokenizers_testing import word_tokenizer

IMAGE_SIZE = 14


def tiny_pair(reads_text: bool = True, **settings):
    """[`MemoryBankQFormerForConditionalGeneration`] and [`MemoryBankQFormerProcessor`]."""
    tokenizer, qformer_tokenizer = word_tokenizer(), word_tokenizer(bos=None)
    processor = MemoryBankQFormerProcessor(
        VideoClipProcessor(
            size={"shortest_edge": IMAGE_SIZE}, crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}, num_frames=4
        ),
        tokenizer,
        qformer_tokenizer if reads_text else None,
        num_query_tokens=SIZES["num_query_tokens"],
    )
    vision = InstructBlipVisionConfig(
        hidden_size=40,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=7,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = tiny_model(
        MemoryBankQFormerForConditionalGeneration,
        vision_config=vision,
        text_config=text,
        video_token_id=processor.video_token_id,
        use_qformer_text_input=reads_text,
        **settings,
    )
    return model, processor


def random_images(num_frames: int, seed: int = 0) -> np.ndarray:
    """(num_frames, height, width, 3) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (num_frames, 16, 20, 3), dtype=np.uint8)


def same(first: torch.Tensor, second: torch.Tensor, atol: float = 1e-5) -> bool:
    return first.shape == second.shape and torch.allclose(first, second, atol=atol)
