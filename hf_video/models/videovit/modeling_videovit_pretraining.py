"""The masked autoencoder of VideoMAE and VideoMAE V2, around VideoViT."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs
from transformers.utils.generic import can_return_tuple

from ..shared_configuration import check_limits
from ..shared_video import count_masked, places_of, take_tokens, token_grid
from .configuration_videovit import VideoViTConfig
from .masking_videovit import DrawsMasks, tube_mask
from .modeling_videovit import (
    TokenGrid,
    VideoViTAttention,
    VideoViTModel,
    VideoViTPositionEmbeddings,
    VideoViTPreTrainedModel,
    VideoViTRotaryEmbedding,
    make_layers,
    make_norm,
    patchify,
)

LIMITS = {
    "at least 1": ["decoder_hidden_size", "decoder_num_attention_heads", "decoder_intermediate_size"],
    "at least 0": ["decoder_num_hidden_layers"],
}


@dataclass
class VideoViTForPreTrainingOutput(ModelOutput):
    """
    Output of [`VideoViTForPreTraining`].

    Args:
        loss (`torch.FloatTensor` of shape `(1,)`):
            Mean squared error over the patches to reconstruct.
        logits (`torch.FloatTensor` of shape `(batch_size, num_predicted, tubelet_size * patch_height * patch_width *
            num_channels)`):
            Predicted patches in raster order; the values of a patch are in the order frame, row, column, channel. The
            decoder predicts the masked patches or, with a decoder mask, all patches that this mask keeps.
        mask (`torch.FloatTensor` of shape `(batch_size, num_patches)`):
            The mask that was used: 1 for patches hidden from the encoder, 0 for visible ones.
        hidden_states, attentions (`tuple[torch.FloatTensor]`, *optional*):
            Hidden states and attention weights of the encoder.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    mask: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


class VideoViTDecoder(nn.Module):
    """
    The narrow transformer that reconstructs patches. Its positions are RoPE or none if the encoder's are, otherwise
    sinusoidal.
    """

    def __init__(self, config: VideoViTConfig):
        super().__init__()
        head_dim = config.decoder_hidden_size // config.decoder_num_attention_heads
        self.layers = make_layers(
            config,
            config.decoder_num_hidden_layers,
            hidden_size=config.decoder_hidden_size,
            num_attention_heads=config.decoder_num_attention_heads,
            head_dim=head_dim,
            intermediate_size=config.decoder_intermediate_size,
        )
        self.position_embeddings = self.rotary_embedding = None
        if config.position_embedding_type == "rope":
            if head_dim % 2 or head_dim < 6:
                raise ValueError(f"RoPE needs decoder heads of an even width of at least 6, got {head_dim}.")
            self.rotary_embedding = VideoViTRotaryEmbedding(config, head_dim)
        elif config.position_embedding_type != "none":
            self.position_embeddings = VideoViTPositionEmbeddings(config, config.decoder_hidden_size, learned=False)
        self.norm = make_norm(config, config.decoder_hidden_size, config.head_norm_eps)
        self.head = nn.Linear(config.decoder_hidden_size, config.num_channels * math.prod(config.patch_shape))

    def forward(
        self,
        visible_tokens: torch.Tensor,
        mask_token: torch.Tensor,
        places: torch.Tensor,
        grid: TokenGrid,
    ) -> torch.Tensor:
        """
        Predict the pixels of hidden patches from the tokens of visible ones.

        Args:
            visible_tokens: `(batch_size, num_visible, decoder_hidden_size)`.
            mask_token: `(1, 1, decoder_hidden_size)`, stands in for every patch to predict.
            places: `(batch_size, num_visible + num_predicted)`, int64: the patches of `visible_tokens`, then those
                to predict.
            grid: token grid (t, h, w).

        Returns:
            `(batch_size, num_predicted, tubelet_size * patch_height * patch_width * num_channels)`.
        """
        num_predicted = places.shape[1] - visible_tokens.shape[1]
        mask_tokens = mask_token.to(visible_tokens).expand(visible_tokens.shape[0], num_predicted, -1)
        hidden_states = torch.cat([visible_tokens, mask_tokens], dim=1)
        rotary = None
        if self.position_embeddings is not None:
            positions = self.position_embeddings(grid).to(hidden_states)
            hidden_states = hidden_states + positions[0, places]
        if self.rotary_embedding is not None:
            angles = self.rotary_embedding(grid, hidden_states.device)[0, places][:, None]
            rotary = angles.cos(), angles.sin()
        for layer in self.layers:
            hidden_states = layer(hidden_states, rotary)
        return self.head(self.norm(hidden_states[:, -num_predicted:]))


class VideoViTForPreTraining(DrawsMasks, VideoViTPreTrainedModel):
    """
    Masked autoencoder (VideoMAE, https://arxiv.org/abs/2203.12602). The encoder sees few patches, and a small decoder
    reconstructs the others. A decoder mask makes it the dual masking of VideoMAE V2
    (https://arxiv.org/abs/2303.16727).
    """

    _fsdp_plan = {"decoder.layers.*": "free_full_weight"}
    # Tells `Trainer` that the loss is the mean over the call's own batch.
    accepts_loss_kwargs = False

    def __init__(self, config: VideoViTConfig):
        config = config.with_final_norm()
        super().__init__(config)
        check_limits(config, LIMITS)
        config.width_of_a_head("decoder_hidden_size", "decoder_num_attention_heads")
        if config.use_class_token:
            raise ValueError("Pre-training reconstructs patches alone: set `use_class_token=False`.")
        is_finite = all(map(math.isfinite, (*config.image_mean, *config.image_std)))
        is_complete = len(config.image_mean) == len(config.image_std) == config.num_channels
        if not is_complete or not is_finite or min(config.image_std) <= 0:
            raise ValueError(
                f"`image_mean` {config.image_mean} and `image_std` {config.image_std} must have one finite value for "
                f"each of `num_channels`={config.num_channels} channels, the latter above 0: pre-training undoes the "
                "normalisation."
            )
        self.videovit = VideoViTModel(config)
        self.encoder_to_decoder = nn.Linear(config.hidden_size, config.decoder_hidden_size, bias=False)
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.decoder_hidden_size))
        self.decoder = VideoViTDecoder(config)
        self.post_init()
        self._tp_plan |= {f"decoder.{name}": style for name, style in self.videovit._tp_plan.items()}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self:
            # VideoMAE's own function draws within one standard deviation.
            std = self.config.initializer_range
            init.trunc_normal_(self.mask_token, std=std, a=-std, b=std)
            if self.config.weight_init == "xavier_uniform":
                self._init_as_videomae()

    def _init_as_videomae(self) -> None:
        """As VideoMAE's `modeling_pretrain.py`, which leaves the convolution of patches and the layer between encoder
        and decoder as PyTorch makes them."""
        as_pytorch = (self.videovit.embeddings.patch_embeddings.projection, self.encoder_to_decoder)
        attentions = [module for module in self.modules() if isinstance(module, VideoViTAttention)]
        # The original draws queries, keys and values as one matrix.
        thirds = {part for each in attentions for part in (each.query, each.key, each.value)}
        for module in self.modules():
            if module in as_pytorch:
                init.kaiming_uniform_(module.weight, a=math.sqrt(5))
                if module.bias is not None:
                    bound = 1 / math.sqrt(module.in_features)
                    init.uniform_(module.bias, -bound, bound)
            elif isinstance(module, nn.Linear):
                num_outputs = module.out_features * (3 if module in thirds else 1)
                bound = math.sqrt(6 / (module.in_features + num_outputs))
                init.uniform_(module.weight, -bound, bound)

    @torch.no_grad()
    def reconstruction_targets(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """
        The pixels of every patch, `(batch_size, num_patches, tubelet_size * patch_height * patch_width *
        num_channels)`. They are in [0, 1] or, with `norm_pix_loss`, standardised per patch and channel (divided by the
        unbiased standard deviation + 1e-6).
        """
        pixel_values = pixel_values.to(torch.promote_types(pixel_values.dtype, torch.float32))
        mean, std = (
            torch.tensor(values, dtype=torch.float32).to(pixel_values, non_blocking=True)[:, None, None]
            for values in (self.config.image_mean, self.config.image_std)
        )
        patches = patchify(pixel_values * std + mean, self.config.patch_shape, "b (t h w) (dt dh dw) c")
        if self.config.norm_pix_loss:
            deviation, average = torch.std_mean(patches, dim=2, keepdim=True)
            patches = (patches - average) / (deviation + 1e-6)
        return patches.flatten(2)

    @can_return_tuple
    def forward(
        self,
        pixel_values: torch.Tensor,
        bool_masked_pos: torch.Tensor | None = None,
        bool_decoder_masked_pos: torch.Tensor | None = None,
        num_masked: int | None = None,
        num_decoder_masked: int | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> VideoViTForPreTrainingOutput:
        r"""
        Args:
            pixel_values (`torch.FloatTensor` of shape `(batch_size, num_frames, num_channels, height, width)`):
                Frames normalised with `config.image_mean` and `config.image_std`.
            bool_masked_pos (`torch.BoolTensor` of shape `(batch_size, num_patches)`, *optional*):
                True for patches that are hidden from the encoder, as many in every clip. By default `tube_mask` draws
                a mask with `config.mask_ratio` for every clip.
            bool_decoder_masked_pos (`torch.BoolTensor` of shape `(batch_size, num_patches)`, *optional*):
                True for patches that the decoder drops, as many in every clip. It predicts all others, also visible
                ones, which do not count in the loss. By default it predicts exactly the hidden patches.
            num_masked, num_decoder_masked (`int`, *optional*):
                Number of true entries in every row of the two masks. By default they are counted, for which a GPU is
                waited for, and which `torch.compile(fullgraph=True)` cannot do. `draw_masks` gives them.
            kwargs: other arguments of [`VideoViTModel`].

        Returns:
            [`VideoViTForPreTrainingOutput`].

        Raises:
            ValueError: for masks of another shape or dtype, with unequal counts in a batch, or that leave nothing to
                encode or to predict; for a `config.mask_ratio` that does so.
        """
        grid = token_grid(pixel_values, self.config)
        batch_size, num_patches = pixel_values.shape[0], math.prod(grid)
        if bool_masked_pos is None:
            bool_masked_pos = tube_mask(batch_size, grid, self.config.mask_ratio, device=pixel_values.device)
            num_masked = grid[0] * int(self.config.mask_ratio * grid[1] * grid[2])
        num_masked = count_masked(bool_masked_pos, "bool_masked_pos", batch_size, num_patches, num_masked)
        predicted, num_predicted, num_counted = bool_masked_pos, num_masked, num_masked
        if bool_decoder_masked_pos is not None:
            num_dropped = count_masked(
                bool_decoder_masked_pos, "bool_decoder_masked_pos", batch_size, num_patches, num_decoder_masked
            )
            predicted, num_predicted = ~bool_decoder_masked_pos, num_patches - num_dropped
            num_counted = num_masked - num_dropped  # or more, if the decoder drops visible patches
        # Values are only looked at, for which the device is waited for, if the counts leave it open.
        if num_counted <= 0 and not (bool_masked_pos & predicted).any():
            raise ValueError("The masks leave no hidden patch to predict: hide more, or drop fewer.")
        outputs: BaseModelOutput = self.videovit(
            pixel_values, bool_masked_pos, num_masked=num_masked, return_dict=True, **kwargs
        )
        visible_tokens = self.encoder_to_decoder(outputs.last_hidden_state)
        predicted_places = places_of(predicted, num_predicted)
        places = torch.cat([places_of(~bool_masked_pos, num_patches - num_masked), predicted_places], dim=1)
        logits = self.decoder(visible_tokens, self.mask_token, places, grid)
        targets = take_tokens(self.reconstruction_targets(pixel_values), predicted_places)
        # At least float32, whatever the model's dtype or autocast: from step to step the loss changes little.
        error = (logits.to(targets.dtype) - targets).square().mean(dim=-1)
        counted = bool_masked_pos.gather(1, predicted_places)
        return VideoViTForPreTrainingOutput(
            loss=(error * counted).sum() / counted.sum(),
            logits=logits,
            mask=bool_masked_pos.to(logits.dtype),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


__all__ = ["VideoViTForPreTraining", "VideoViTForPreTrainingOutput"]
