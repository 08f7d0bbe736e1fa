"""What becomes of the tensors of VideoMamba's encoder and of its heads that are aligned with a teacher."""

import torch

from .weight_rules import Rule, inflate_patches, rename

# The tensors that sizes are read from.
TELLING_TENSORS = ("patch_embed.proj.weight", "pos_embed") + tuple(
    f"layers.0.{name}" for name in ("norm.weight", "mixer.A_log", "mixer.conv1d.weight", "mixer.dt_proj.weight")
)

EMBEDDINGS, MIXER = "videomamba.embeddings.", r"layers\.(\d+)\.mixer\."
ENCODER_RULES = (
    rename("cls_token", f"{EMBEDDINGS}cls_token"),
    rename("pos_embed", f"{EMBEDDINGS}position_embeddings"),
    rename("temporal_pos_embedding", f"{EMBEDDINGS}temporal_position_embeddings"),
    rename(r"patch_embed\.proj\.bias", f"{EMBEDDINGS}patch_embeddings.projection.bias"),
    rename(r"layers\.(\d+)\.norm\.(weight|bias)", r"videomamba.layers.\1.norm.\2"),
    rename(MIXER + r"(in_proj|out_proj)\.(weight|bias)", r"videomamba.layers.\1.mixer.\2.\3"),
    rename(MIXER + r"(A_log|D)", r"videomamba.layers.\1.mixer.forward_scan.\2"),
    rename(MIXER + r"conv1d\.(weight|bias)", r"videomamba.layers.\1.mixer.forward_scan.conv1d.\2"),
    rename(MIXER + r"(x_proj|dt_proj)\.weight", r"videomamba.layers.\1.mixer.forward_scan.\2.weight"),
    rename(MIXER + r"dt_proj\.bias", r"videomamba.layers.\1.mixer.forward_scan.dt_bias"),
    rename(MIXER + r"A_b_log", r"videomamba.layers.\1.mixer.backward_scan.A_log"),
    rename(MIXER + r"D_b", r"videomamba.layers.\1.mixer.backward_scan.D"),
    rename(MIXER + r"conv1d_b\.(weight|bias)", r"videomamba.layers.\1.mixer.backward_scan.conv1d.\2"),
    rename(MIXER + r"(x_proj|dt_proj)_b\.weight", r"videomamba.layers.\1.mixer.backward_scan.\2.weight"),
    rename(MIXER + r"dt_proj_b\.bias", r"videomamba.layers.\1.mixer.backward_scan.dt_bias"),
)
PRE_TRAINING_RULES = (
    rename(r"norm\.(weight|bias)", r"videomamba.norm_f.\1"),
    rename(r"clip_decoder\.(\d+)\.(head|norm)\.(weight|bias)", r"decoder.\1.\2.\3"),
    rename(r"pool_norm\.(weight|bias)", r"videomamba.pool_norm.\1"),
)


def patch_rule(tubelet_size: int, inflation: str) -> Rule:
    """The kernel of the patch embedding: that of images is inflated over time, that of videos stays as it is."""

    def inflate(kernel: torch.Tensor) -> torch.Tensor:
        return kernel if kernel.ndim == 5 else inflate_patches(kernel, tubelet_size, inflation)

    return rename(r"patch_embed\.proj\.weight", f"{EMBEDDINGS}patch_embeddings.projection.weight", inflate)
