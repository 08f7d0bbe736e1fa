"""Processor of MemoryBankQFormer: videos, the text that the Q-Former reads, and the prompts of the language model."""

from collections.abc import Sequence
from typing import Any

from transformers import AddedToken
from transformers.feature_extraction_utils import BatchFeature
from transformers.image_utils import ImageInput, load_image, make_flat_list_of_images
from transformers.utils import TensorType
from transformers.video_utils import VideoInput

from ..shared_processing import OptionalTokenizerProcessor

# The loss is not computed where a label has this value.
IGNORED_LABEL = -100
# Options of `from_pretrained` that tell where a file is.

# Goes before the language model's chat template: most templates expect plain text in the messages.
FLATTEN_MESSAGES = """\
{%- set flat = namespace(messages=[], text='') -%}
{%- for message in messages -%}
    {%- if message['content'] is string -%}
        {%- set flat.text = message['content'] -%}
    {%- else -%}
        {%- set flat.text = '' -%}
        {%- for block in message['content'] -%}
            {%- set is_text = block['type'] == 'text' -%}
            {%- set flat.text = flat.text + (block['text'] if is_text else 'VIDEO_TOKEN') -%}
        {%- endfor -%}
    {%- endif -%}
    {%- set flat.messages = flat.messages + [dict(message, content=flat.text)] -%}
{%- endfor -%}
{%- set messages = flat.messages -%}
"""


class MemoryBankQFormerProcessor(OptionalTokenizerProcessor):
    r"""
    Constructs a processor for videos and texts, as MA-LMM (https://arxiv.org/abs/2404.05726) prepares them.

    A prompt begins with `num_query_tokens` placeholders, which the model replaces by the output of the Q-Former. If
    the text holds the `video_token` once, they stand there instead. The Q-Former reads the same text.

    Args:
        video_processor ([`VideoClipProcessor`]): samples and prepares frames.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): tokenizer of the language model, if there is one. Its
            `truncation_side` is set to "left", so texts that are too long lose their beginning.
        qformer_tokenizer (`PreTrainedTokenizerBase`, *optional*): tokenizer of the Q-Former, with the same change.
            None if the Q-Former reads no text, as in BLIP-2.
        num_query_tokens (`int`, defaults to 32): number of placeholders, `num_query_tokens` of the model. A model
            without memory (`memory_bank_length=0`) reads the queries of every frame, and needs `num_frames` times as
            many.
        video_token (`str`, *optional*, defaults to `"<video>"`): the placeholder; its id is the model's
            `video_token_id`. It is added to the tokenizer if it is missing there. None for models that put the video
            before the text without placeholders.
        is_encoder_decoder (`bool`, defaults to `False`): whether the language model reads prompt and answer apart, as
            T5 does.
        chat_template (`str` or `dict`, *optional*): the chat template; by default that of the tokenizer, with the
            video token for a video.

    Example:

    ```python
    >>> from transformers import AutoProcessor

    >>> processor = AutoProcessor.from_pretrained("my_model")
    >>> inputs = processor("kitchen.mp4", "what is being cooked?", return_tensors="pt")
    >>> sorted(inputs)
    ['attention_mask', 'input_ids', 'pixel_values', 'qformer_attention_mask', 'qformer_input_ids']
    ```
    """

    def __init__(
        self,
        video_processor: Any,
        tokenizer: Any = None,
        qformer_tokenizer: Any = None,
        num_query_tokens: int = 32,
        video_token: str | None = "<video>",
        is_encoder_decoder: bool = False,
        chat_template: Any = None,
    ):
        self.num_query_tokens = num_query_tokens
        self.video_token = None if tokenizer is None else video_token
        self.is_encoder_decoder = is_encoder_decoder
        if self.video_token is not None and self.video_token not in tokenizer.get_vocab():
            tokenizer.add_tokens([AddedToken(self.video_token, normalized=False, special=True)], special_tokens=True)
        for each in (tokenizer, qformer_tokenizer):
            if each is not None:
                each.truncation_side = "left"
        if chat_template is None and self.video_token is not None and isinstance(tokenizer.chat_template, str):
            chat_template = FLATTEN_MESSAGES.replace("VIDEO_TOKEN", self.video_token) + tokenizer.chat_template
        super().__init__(video_processor, tokenizer, qformer_tokenizer, chat_template=chat_template)

    @property
    def video_token_id(self) -> Any:
        """Id of the placeholder in the tokenizer of the language model, or None if there is no placeholder."""
        return None if self.video_token is None else self.tokenizer.convert_tokens_to_ids(self.video_token)

    @property
    def model_input_names(self) -> list[str]:
        names = list(self.video_processor.model_input_names)
        if self.tokenizer is not None:
            names += ["input_ids", "attention_mask"]
        if self.qformer_tokenizer is not None:
            names += ["qformer_input_ids", "qformer_attention_mask"]
        return names

    def __call__(
        self,
        videos: VideoInput | None = None,
        text: str | Sequence[str] | None = None,
        qformer_text: str | Sequence[str] | None = None,
        text_target: str | Sequence[str] | None = None,
        images: ImageInput | None = None,
        audio: None = None,
        add_special_tokens: bool | None = True,
        max_length: int | None = None,
        max_target_length: int | None = None,
        padding: bool | str | None = True,
        truncation: bool | str | None = None,
        return_tensors: str | TensorType | None = None,
        text_kwargs: dict[str, Any] | None = None,
        videos_kwargs: dict[str, Any] | None = None,
        common_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """
        Prepare videos, prompts and, for training, answers. An option that is None has its default.

        Args:
            videos (*optional*): a video or a batch, see [`VideoClipProcessor`]. Without videos only the texts are
                prepared, for frames or a memory that the model already has.
            text (`str` or `Sequence[str]`, *optional*): the prompt, or one for each video.
            qformer_text (`str` or `Sequence[str]`, *optional*): the text for the Q-Former; by default the prompt.
            text_target (`str` or `Sequence[str]`, *optional*): the answers, for training. For a decoder they follow
                the prompt and end with the end-of-sequence token. Padding then comes last; without answers it comes
                first, because generated tokens follow the prompt.
            images (*optional*): images instead of videos; each becomes a video of one frame.
            audio: must be None; chat templates pass it.
            add_special_tokens (`bool`, defaults to `True`): whether prompts get the tokenizer's special tokens.
            max_length (`int`, *optional*): most tokens of the prompt, without placeholders, and of the Q-Former's
                text.
            max_target_length (`int`, *optional*): most tokens of the answer; the rest is cut off.
            padding (`bool` or `str`, defaults to `True`): texts are padded to the longest, the only choice.
            truncation (`bool`, *optional*): whether long texts are cut, to `max_length` or, if that is not set, to the
                longest text that the tokenizer's model reads. By default they are cut if `max_length` is set.
            return_tensors (`str`, *optional*): "pt" for tensors.
            text_kwargs, videos_kwargs, common_kwargs (`dict`, *optional*): the same options, grouped as in other
                processors: for texts, for videos, and for both.
            kwargs: options of the video processor.

        Returns:
            `BatchFeature` with what there are inputs and tokenizers for. `pixel_values` (batch_size, num_frames,
            num_channels, height, width); `input_ids` and `attention_mask` (batch_size, sequence_length);
            `qformer_input_ids` and `qformer_attention_mask` (batch_size, text_length), padded on the right; `labels`
            (batch_size, sequence_length), which are -100 outside of the answer. For an encoder-decoder `labels` are
            (batch_size, target_length).

        Raises:
            ValueError: if the numbers of videos and texts differ, a text holds several videos, answers come without
                prompts, or `padding` asks for another length.
        """
        if nested := [each for each in (common_kwargs, text_kwargs, videos_kwargs) if each]:
            options = {
                "add_special_tokens": add_special_tokens,
                "max_length": max_length,
                "max_target_length": max_target_length,
                "padding": padding,
                "truncation": truncation,
                "return_tensors": return_tensors,
                **kwargs,
            }
            for each in nested:
                options |= {name: value for name, value in each.items() if value is not None}
            return self(videos, text, qformer_text, text_target, images, audio, **options)
        if audio is not None:
            raise ValueError(f"{type(self).__name__} takes videos, images and texts, no sound.")
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        add_special_tokens = add_special_tokens is None or add_special_tokens
        if padding not in (None, True, "longest"):
            raise ValueError(f"Texts are padded to the longest: `padding` is True or 'longest', got {padding!r}.")
        if images is not None:
            if videos is not None:
                raise ValueError("Pass `videos` or `images`: a text is of one video.")
            videos, kwargs = _as_videos(images), kwargs | {"do_sample_frames": False}
        truncation = max_length is not None if truncation is None else truncation
        if videos is None and text is None and qformer_text is None:
            raise ValueError("Pass `videos`, `text` or `qformer_text`.")
        if text_target is not None and (text is None or self.tokenizer is None):
            raise ValueError("`text_target` answers a prompt: pass `text`, to a processor with a `tokenizer`.")
        data: dict[str, Any] = {}
        num_videos = 1
        if videos is not None:
            data |= self.video_processor(videos, return_tensors=return_tensors, **kwargs)
            num_videos = len(data["pixel_values"])
        prompts = _one_each(text, num_videos, "text", videos is not None)
        if prompts is not None and self.tokenizer is not None:
            targets = _one_each(text_target, len(prompts), "text_target")
            data |= self._tokenize(prompts, targets, add_special_tokens, truncation, max_length, max_target_length)
        if self.qformer_tokenizer is not None and (qformer_text is not None or prompts is not None):
            if qformer_text is None and prompts is not None:
                qformer_text = [prompt.replace(self.video_token or "", "") for prompt in prompts]
            number = num_videos if prompts is None else len(prompts)
            is_number_fixed = videos is not None or prompts is not None
            read = _one_each(qformer_text, number, "qformer_text", is_number_fixed)
            encoded = self.qformer_tokenizer(
                read, padding=True, padding_side="right", truncation=truncation, max_length=max_length
            )
            data |= {f"qformer_{name}": encoded[name] for name in ("input_ids", "attention_mask")}
        return BatchFeature(data, tensor_type=return_tensors, skip_tensor_conversion=self.skip_tensor_conversion)

    def _tokenize(
        self,
        prompts: list[str],
        targets: list[str] | None,
        add_special_tokens: bool,
        truncation: bool | str,
        max_length: int | None,
        max_target_length: int | None,
    ) -> dict[str, list[list[int]]]:
        """Prompts with placeholders, and labels if there are targets. All lists of one kind have one length."""
        encoded = self.tokenizer(
            prompts, add_special_tokens=add_special_tokens, truncation=truncation, max_length=max_length
        )
        sequences = [self._with_placeholders(*pair) for pair in zip(prompts, encoded["input_ids"], strict=True)]
        labels = None
        if targets is not None and self.is_encoder_decoder:
            labels = [ids[:max_target_length] for ids in self.tokenizer(text_target=targets)["input_ids"]]
        elif targets is not None:
            if self.tokenizer.eos_token_id is None:
                raise ValueError(
                    "An answer ends with the end of sequence, but the tokenizer has no `eos_token`: set one, which "
                    "the model's `generation_config.eos_token_id` names, too."
                )
            answers = self.tokenizer(targets, add_special_tokens=False)["input_ids"]
            answers = [[*ids, self.tokenizer.eos_token_id][:max_target_length] for ids in answers]
            pairs = list(zip(sequences, answers, strict=True))
            labels = [[IGNORED_LABEL] * len(prompt) + answer for prompt, answer in pairs]
            sequences = [prompt + answer for prompt, answer in pairs]
        # Generated tokens follow the prompt, so its padding comes first. For an encoder or a loss the side is free.
        side = "left" if targets is None and not self.is_encoder_decoder else "right"
        longest = max(map(len, sequences))
        if self.tokenizer.pad_token_id is None and any(len(ids) < longest for ids in sequences):
            raise ValueError(
                "Prompts of different lengths are padded, but the tokenizer has no `pad_token`: set one, for example "
                "`processor.tokenizer.pad_token = processor.tokenizer.eos_token`."
            )
        data = {
            "input_ids": _pad(sequences, self.tokenizer.pad_token_id, side),
            "attention_mask": _pad([[1] * len(ids) for ids in sequences], 0, side),
        }
        return data if labels is None else data | {"labels": _pad(labels, IGNORED_LABEL, "right")}

    def _with_placeholders(self, prompt: str, ids: list[int]) -> list[int]:
        if self.video_token is None:
            return ids
        placeholders = [self.video_token_id] * self.num_query_tokens
        count = prompt.count(self.video_token)
        if not count:
            return placeholders + ids
        if count > 1 or ids.count(self.video_token_id) != count:
            raise ValueError(
                f"A prompt holds {self.video_token} once, or not at all, and `max_length` must leave room for it; "
                f"got {count} of them before and {ids.count(self.video_token_id)} after truncation in {prompt!r}."
            )
        place = ids.index(self.video_token_id)
        return ids[:place] + placeholders + ids[place + 1 :]


def _as_videos(images: Any) -> list[Any]:
    """Turn images, in lists of any depth, into videos of one frame."""
    if isinstance(images, (list, tuple)):
        return [video for image in images for video in _as_videos(image)]
    if isinstance(images, str):
        return [[load_image(images)]]
    return [[image] for image in make_flat_list_of_images(images)]


def _one_each(texts: Any, number: int, name: str, is_number_fixed: bool = True) -> list[str] | None:
    """One text for each of `number` videos. Without `is_number_fixed` a list of texts may have any length."""
    if texts is None:
        return None
    if isinstance(texts, str):
        return [texts] * number
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"`{name}` is a text or a list of texts, got {texts!r}.")
    if is_number_fixed and len(texts) != number:
        raise ValueError(f"`{name}` has {len(texts)} texts, but {number} are expected: one for each video.")
    return list(texts)


def _pad(sequences: list[list[int]], value: Any, side: str) -> list[list[int]]:
    longest = max(map(len, sequences))
    padding = [[value] * (longest - len(ids)) for ids in sequences]
    pairs = zip(padding, sequences, strict=True) if side == "left" else zip(sequences, padding, strict=True)
    return [first + second for first, second in pairs]


__all__ = ["MemoryBankQFormerProcessor"]
