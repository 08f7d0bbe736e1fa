"""A video-text model so small that a training run takes a moment, and captioned videos for it."""

import json

import torch
from transformers import BertConfig

from hf_video import VideoTextDualEncoderConfig, VideoTextDualEncoderModel, VideoTextDualEncoderProcessor
from hf_video.models.videovit import VideoViTConfig
from hf_video.processing import VideoClipProcessor
from tests.testing.videos import encode_video, make_frames

from ..models.memory_bank_qformer.tokenizers_testing import word_tokenizer

WORDS = "a dark grey bright white picture moves left".split()
CAPTIONS = ("A dark picture", ["a bright picture", "a white picture"], "a grey picture moves left")


def write_captions(folder):
    """`train.json` of three videos and four captions, and the same as `validation.json`."""
    for name, shade in zip("abc", (0, 230, 120), strict=True):
        encode_video(folder / f"{name}.mp4", make_frames(8, 16, 16) // 16 + shade)
    rows = [{"video": f"{name}.mp4", "caption": caption} for name, caption in zip("abc", CAPTIONS, strict=True)]
    for split in ("train", "validation"):
        (folder / f"{split}.json").write_text(json.dumps(rows))
    return folder


def make_video_text_pair(**options):
    """A [`VideoTextDualEncoderModel`] with random weights, and its processor, which knows the words of `WORDS`."""
    torch.manual_seed(0)
    tokenizer = word_tokenizer(bos=None, words=WORDS)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    clips = {"image_size": 16, "patch_size": 8, "num_frames": 2, "tubelet_size": 1, "use_mean_pooling": False}
    vision = VideoViTConfig(**sizes, **clips, num_hidden_layers=1)
    words = {"vocab_size": len(tokenizer), "max_position_embeddings": 16}
    undropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    text = BertConfig(**sizes, **words, **undropped, num_hidden_layers=2)
    config = VideoTextDualEncoderConfig(
        vision_config=vision, text_config=text, fusion_layer=1, projection_dim=8, pooling="avg", **options
    )
    size = {"height": 16, "width": 16}
    frames = VideoClipProcessor(num_frames=2, sampling_strategy="uniform", size=size, do_center_crop=False)
    return VideoTextDualEncoderModel(config), VideoTextDualEncoderProcessor(frames, tokenizer)
