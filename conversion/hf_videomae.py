"""
The VideoMAE classes of Transformers, as VideoViT.

The files are read directly, never through the `VideoMAE` class that is installed: its versions disagree about the
names of the query and value biases, and some loaded them as zeros.
"""

import argparse

from hf_video.models.videovit import VideoViTConfig, VideoViTForPreTraining, VideoViTForVideoClassification

from .helpers.checkpoint import expect, read_model_folder, shape_of
from .helpers.command import Converted, labels_of_original, make_parser, run
from .helpers.fields import make_config
from .helpers.videovit import (
    encoder_fields,
    make_processor,
    patch_embedding_rules,
    transformers_block_rules,
)
from .helpers.weight_rules import apply_rules, load_converted, rename

RULES = (
    *patch_embedding_rules(r"videomae\.embeddings\.patch_embeddings\.projection"),
    *transformers_block_rules(r"videomae\.encoder\.layer", "videovit.layers"),
    *transformers_block_rules(r"decoder\.decoder_layers", "decoder.layers"),
    rename(r"videomae\.layernorm\.(weight|bias)", r"videovit.layernorm.\1"),
    rename(r"fc_norm\.(weight|bias)", r"fc_norm.\1"),
    rename(r"classifier\.(weight|bias)", r"classifier.\1"),
    rename(r"decoder\.(norm|head)\.(weight|bias)", r"decoder.\1.\2"),
    rename(r"encoder_to_decoder\.weight", "encoder_to_decoder.weight"),
    rename("mask_token", "mask_token"),
)

# Fields of `VideoMAEConfig` that mean the same here and have the same defaults.
FIELDS = (
    *("num_frames", "tubelet_size", "use_mean_pooling", "norm_pix_loss", "problem_type"),
    *("decoder_hidden_size", "decoder_num_hidden_layers", "decoder_num_attention_heads", "decoder_intermediate_size"),
)


def convert(arguments: argparse.Namespace) -> Converted:
    """Model and processor for the folder or Hub id that the command line names."""
    original, weights, processor = read_model_folder(arguments.checkpoint, "videomae")
    fields = encoder_fields(original, weights, *FIELDS)
    # `fc_norm` and the decoder's norm have PyTorch's default epsilon, not that of the configuration.
    fields |= {"head_norm_eps": 1e-5, "position_embedding_resize": "rebuild"}
    fields["qkv_bias"] = original.get("qv_bias", original.get("qkv_bias", True))
    if "mask_token" in weights:
        # Transformers gives the encoder of a pre-training model a final norm only without mean pooling.
        fields["use_final_norm"] = not fields.get("use_mean_pooling", True)
    else:
        expect(weights, "a classifier or a pre-training model", "classifier.weight")
        fields |= labels_of_original(original, shape_of(weights, "classifier.weight", 2)[0])
    model_class = VideoViTForPreTraining if "mask_token" in weights else VideoViTForVideoClassification
    model = model_class(make_config(VideoViTConfig, fields, arguments.set))
    load_converted(model, apply_rules(weights, RULES))
    return model, make_processor(model.config, processor)


def main(argv: list[str] | None = None, raises_errors: bool = False) -> None:
    run(make_parser(__file__, __doc__, from_hub=True), argv, convert, raises_errors)


if __name__ == "__main__":
    main()
