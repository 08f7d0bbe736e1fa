"""
The ViT backbone of STMixer, as VideoViTBackbone.

The checkpoint is that of a detector, or of the classifier that it starts from. Source: MCG-NJU/STMixer,
`video_model_builder.ViT`; `utils/checkpoint_loader` says which tensor is loaded where.
"""

import argparse

from hf_video.models.videovit import VideoViTBackbone, VideoViTConfig
from hf_video.processing import VideoClipProcessor

from .helpers.checkpoint import (
    ConversionError,
    agree,
    find_weights,
    num_heads_of,
    preview,
    read_checkpoint,
    read_original_config,
    select_part,
    strip_prefixes,
)
from .helpers.command import Converted, make_parser, run
from .helpers.videovit import (
    ENCODER_HEADS,
    block_rules,
    check_blocks,
    encoder_config,
    patch_embedding_rules,
    read_block_sizes,
    read_patch_sizes,
)
from .helpers.weight_rules import apply_rules, drop, load_converted, rename

# Keys of `cfg.ViT` with the defaults of the original, by the names that the constructor of VideoMAE uses.
ARGUMENTS = {
    "TUBELET_SIZE": ("tubelet_size", 2),
    "PATCH_SIZE": ("patch_size", 16),
    "IN_CHANS": ("in_chans", 3),
    "EMBED_DIM": ("embed_dim", 768),
    "PRETRAIN_IMG_SIZE": ("img_size", 224),
    "USE_LEARNABLE_POS_EMB": ("use_learnable_pos_emb", False),
    "DROP_RATE": ("drop_rate", 0.0),
    "ATTN_DROP_RATE": ("attn_drop_rate", 0.0),
    "DROP_PATH_RATE": ("drop_path_rate", 0.2),
    "DEPTH": ("depth", 12),
    "NUM_HEADS": ("num_heads", 12),
    "MLP_RATIO": ("mlp_ratio", 4),
    "QKV_BIAS": ("qkv_bias", True),
    "QK_SCALE": ("qk_scale", None),
    "INIT_VALUES": ("init_values", 0.0),
    "USE_CHECKPOINT": ("use_checkpoint", False),
}

BACKBONE_RULES = (
    *patch_embedding_rules(r"patch_embed\.proj"),
    *block_rules("", "videovit."),
    rename("pos_embed", "videovit.embeddings.position_embeddings.weight"),
    rename(r"norm\.(weight|bias)", r"videovit.layernorm.\1"),
    drop(r"fc_norm\..*", "normalises the classifier's mean token; STMixer does not load it into its own norm either"),
    drop(r"head\..*", "the classifier that the backbone starts from"),
)


def convert(arguments: argparse.Namespace) -> Converted:
    """Backbone and processor for the checkpoint that the command line names."""
    weights = find_weights(read_checkpoint(arguments.checkpoint), ("model", "module"))
    weights = strip_prefixes(weights, ("_orig_mod.", "module."))
    weights = select_part(weights, "backbone.", "a backbone has no place for the parts of a detector after it")
    if "encoder.patch_embed.proj.weight" in weights:
        raise ConversionError(
            "This is a pre-training checkpoint, of which STMixer loads nothing without saying so. Convert it with "
            f"`conversion.videomae`. It has {preview(weights)}."
        )
    given = read_original_config(arguments.original_config, {key: default for key, (_, default) in ARGUMENTS.items()})
    config = {ARGUMENTS[key][0]: value for key, value in given.items()}
    patches, blocks = read_patch_sizes(weights), read_block_sizes(weights)
    check_blocks(config, patches["embed_dim"], blocks)
    config = agree(config, patches | blocks | {"use_learnable_pos_emb": "pos_embed" in weights})
    config["num_heads"] = num_heads_of(config, "num_heads", config["embed_dim"], ENCODER_HEADS)
    learned = config["use_learnable_pos_emb"]
    model = VideoViTBackbone(
        VideoViTConfig(
            # The original's table of positions is always for 16 frames.
            **encoder_config(dict(ARGUMENTS.values()) | config | {"all_frames": 16}),
            position_embedding_type="learned" if learned else "sinusoidal",
            position_embedding_resize="token_count",
            detach_position_embeddings=learned,
            use_final_norm=True,
            require_even_token_frames=True,
        )
    )
    # A classifier with mean pooling has no norm of tokens: that of the original keeps its initial values, 1 and 0.
    initial = [r"videovit\.layernorm\..*"] if "norm.weight" not in weights else []
    load_converted(model, apply_rules(weights, BACKBONE_RULES), keep_initial=initial)
    return model, make_processor(model.config)


def make_processor(config: VideoViTConfig) -> VideoClipProcessor:
    """The test recipe of AVA: 16 frames at stride 4, short side 256, aspect ratio kept, the detector's own mean."""
    return VideoClipProcessor(
        num_frames=config.num_frames,
        frame_sampling_rate=4,
        sampling_strategy="dense",
        size={"shortest_edge": 256},
        do_center_crop=False,
        image_mean=[0.45, 0.45, 0.45],
        image_std=[0.225, 0.225, 0.225],
    )


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    parser = make_parser(__file__, __doc__)
    run(parser, argv, convert, raises_errors)


if __name__ == "__main__":
    main()
