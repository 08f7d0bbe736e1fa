"""Tiny models of videos and texts with random weights, in folders of their own, and videos to search."""

from pathlib import Path

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertTokenizer,
    VideoPrismClipModel,
    VideoPrismConfig,
    XCLIPConfig,
    XCLIPModel,
)

from hf_video import (
    VideoClipProcessor,
    VideoMambaConfig,
    VideoTextDualEncoderConfig,
    VideoTextDualEncoderModel,
    VideoTextDualEncoderProcessor,
)
from tests.testing.videos import encode_video

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a glass breaks dog runs left right video of".split()
NUM_FRAMES, SIZE = 2, 32
_BERT = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 16}


def make_processor() -> VideoTextDualEncoderProcessor:
    tokenizer = BertTokenizer({word: number for number, word in enumerate(WORDS)})
    size = {"height": SIZE, "width": SIZE}
    clips = VideoClipProcessor(
        size=size, do_center_crop=False, num_frames=NUM_FRAMES, sampling_strategy="middle", resample=3
    )
    return VideoTextDualEncoderProcessor(clips, tokenizer, max_length=8)


def save_dual_encoder(folder: Path, seed: int = 0) -> Path:
    torch.manual_seed(seed)
    vision = VideoMambaConfig(
        image_size=SIZE, num_frames=NUM_FRAMES, hidden_size=16, num_hidden_layers=1, patch_size=16
    )
    text = BertConfig(vocab_size=len(WORDS), num_hidden_layers=2, **_BERT)
    ids = {"cls_token_id": 2, "mask_token_id": 4}
    config = VideoTextDualEncoderConfig(
        vision_config=vision, text_config=text, fusion_layer=1, projection_dim=12, initializer_range=0.5, **ids
    )
    VideoTextDualEncoderModel(config).save_pretrained(folder)
    make_processor().save_pretrained(folder)
    return folder


def save_xclip(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    mit = {"mit_hidden_size": 12, "mit_intermediate_size": 16, "mit_num_attention_heads": 2}
    frames = {"image_size": SIZE, "patch_size": 16, "num_frames": NUM_FRAMES}
    text = {"vocab_size": len(WORDS), "max_position_embeddings": 16} | sizes
    config = XCLIPConfig(
        text_config=text,
        vision_config=sizes | mit | frames,
        projection_dim=12,
        prompt_layers=1,
        prompt_num_attention_heads=2,
        initializer_factor=5.0,
    )
    return _save(XCLIPModel(config), folder)


def save_videoprism(folder: Path) -> Path:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    layers = {"num_spatial_layers": 1, "num_temporal_layers": 1, "num_auxiliary_layers": 1}
    frames = {"image_size": SIZE, "num_frames": NUM_FRAMES, "tubelet_size": [1, 16, 16]}
    text = {"vocab_size": len(WORDS), "max_position_embeddings": 8, "num_hidden_layers": 1} | sizes
    config = VideoPrismConfig(text_config=text, vision_config=sizes | layers | frames)
    return _save(VideoPrismClipModel(config), folder)


def _save(model, folder: Path) -> Path:
    model.save_pretrained(folder)
    processor = make_processor()
    processor.tokenizer.save_pretrained(folder)
    processor.video_processor.save_pretrained(folder)
    return folder


def write_videos(folder: Path, number: int = 6) -> Path:
    """Videos of eight frames of noise of their own, at four frames a second."""
    folder.mkdir()
    for name in range(number):
        random = np.random.default_rng(name)
        frames = random.integers(0, 256, (8, 4, 4, 3), dtype=np.uint8).repeat(8, axis=1).repeat(8, axis=2)
        encode_video(folder / f"{name}.mp4", frames, fps=4)
    return folder
