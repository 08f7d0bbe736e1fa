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
TEXT_OPTIONS = {"add_special_tokens": True, "max_length": None, "max_target_length": None, "truncation": None}
UNUSED_OPTIONS = ("padding", "audio")

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
        video_token (`str`, defaults to `"<video>"`): the placeholder; its id is the model's `video_token_id`. It is
            added to the tokenizer if it is missing there.
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
        video_token: str = "<video>",
        is_encoder_decoder: bool = False,
        chat_template: Any = None,
    ):
        self.num_query_tokens = num_query_tokens
        self.video_token = video_token
        self.is_encoder_decoder = is_encoder_decoder
        if tokenizer is not None and video_token not in tokenizer.get_vocab():
            tokenizer.add_tokens([AddedToken(video_token, normalized=False, special=True)], special_tokens=True)
        for each in (tokenizer, qformer_tokenizer):
            if each is not None:
                each.truncation_side = "left"
        if chat_template is None and isinstance(getattr(tokenizer, "chat_template", None), str):
            chat_template = FLATTEN_MESSAGES.replace("VIDEO_TOKEN", video_token) + tokenizer.chat_template
        super().__init__(video_processor, tokenizer, qformer_tokenizer, chat_template=chat_template)

    @property
    def video_token_id(self) -> Any:
        """Id of the placeholder in the tokenizer of the language model, or None if there is no tokenizer."""
        return None if self.tokenizer is None else self.tokenizer.convert_tokens_to_ids(self.video_token)

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
        return_tensors: str | TensorType | None = None,
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
            return_tensors (`str`, *optional*): "pt" for tensors.
            kwargs: options of the video processor, and of texts, which are padded to the longest: `add_special_tokens`
                (`bool`, defaults to `True`), whether prompts get the tokenizer's special tokens; `max_length` (`int`),
                most tokens of the prompt, without placeholders, and of the Q-Former's text; `max_target_length`
                (`int`), most tokens of the answer, the rest is cut off; `truncation` (`bool`), whether long texts are
                cut, to `max_length` or, if that is not set, to the longest text that the tokenizer's model reads, by
                default if `max_length` is set. They may be grouped as `text_kwargs`, `videos_kwargs` and
                `common_kwargs`, as in other processors.

        Returns:
            `BatchFeature` with what there are inputs and tokenizers for. `pixel_values` (batch_size, num_frames,
            num_channels, height, width); `input_ids` and `attention_mask` (batch_size, sequence_length);
            `qformer_input_ids` and `qformer_attention_mask` (batch_size, text_length), padded on the right; `labels`
            (batch_size, sequence_length), which are -100 outside of the answer. For an encoder-decoder `labels` are
            (batch_size, target_length).

        Raises:
            ValueError: if the numbers of videos and texts differ, a text holds several videos, or answers come without
                prompts.
        """
        for group in ("common_kwargs", "text_kwargs", "videos_kwargs"):
            kwargs |= kwargs.pop(group, None) or {}
        return_tensors = kwargs.pop("return_tensors", None) or return_tensors
        # Chat templates and pipelines pass these.
        kwargs = {name: value for name, value in kwargs.items() if value is not None and name not in UNUSED_OPTIONS}
        options = {name: kwargs.pop(name, default) for name, default in TEXT_OPTIONS.items()}
        if options["truncation"] is None:
            options["truncation"] = options["max_length"] is not None
        if images is not None:
            if videos is not None:
                raise ValueError("Pass `videos` or `images`: a text is of one video.")
            videos, kwargs = _as_videos(images), kwargs | {"do_sample_frames": False}
        if videos is None and text is None and qformer_text is None:
            raise ValueError("Pass `videos`, `text` or `qformer_text`.")
        if text_target is not None and (text is None or self.tokenizer is None):
            raise ValueError("`text_target` answers a prompt: pass `text`, to a processor with a `tokenizer`.")
        data: dict[str, Any] = {}
        number = None
        if videos is not None:
            data |= self.video_processor(videos, return_tensors=return_tensors, **kwargs)
            number = len(data["pixel_values"])
        prompts = _one_each(text, number, "text")
        if prompts is not None:
            number = len(prompts)
        if prompts is not None and self.tokenizer is not None:
            data |= self._tokenize(prompts, _one_each(text_target, number, "text_target"), **options)
        if qformer_text is None and prompts is not None:
            qformer_text = [prompt.replace(self.video_token, "") for prompt in prompts]
        if self.qformer_tokenizer is not None and qformer_text is not None:
            cut = {name: options[name] for name in ("truncation", "max_length")}
            texts = _one_each(qformer_text, number, "qformer_text")
            encoded = self.qformer_tokenizer(texts, padding=True, padding_side="right", **cut)
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
        options = {"add_special_tokens": add_special_tokens, "truncation": truncation, "max_length": max_length}
        encoded = self.tokenizer(prompts, **options)["input_ids"]
        sequences = [self._with_placeholders(*pair) for pair in zip(prompts, encoded, strict=True)]
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


def _one_each(texts: Any, number: int | None, name: str) -> list[str] | None:
    """One text for each of `number` videos; a list of texts may have any length if there is no number."""
    if texts is None:
        return None
    if isinstance(texts, str):
        return [texts] * (number or 1)
    if number not in (None, len(texts)):
        raise ValueError(f"`{name}` has {len(texts)} texts, but {number} are expected: one for each video.")
    return list(texts)


def _pad(sequences: list[list[int]], value: Any, side: str) -> list[list[int]]:
    longest = max(map(len, sequences))
    padding = [[value] * (longest - len(ids)) for ids in sequences]
    pairs = zip(padding, sequences, strict=True) if side == "left" else zip(sequences, padding, strict=True)
    return [first + second for first, second in pairs]


__all__ = ["MemoryBankQFormerProcessor"]
