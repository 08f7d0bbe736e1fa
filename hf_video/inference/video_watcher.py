"""Watching a video of any length: frames in, answers out. Time and memory for a frame do not grow."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from hf_video.models.memory_bank_qformer.memory_bank import MemoryBank, replay_memory
from hf_video.reading.windows import until_error


class VideoWatcher:
    """
    Reads frames as they come, and answers questions about all of them at any time.

        watcher = VideoWatcher(model, processor, "what is the person doing?")
        for _ in watcher.watch(camera):
            if watcher.frames_seen % 100 == 0:
                print(watcher.answer())

    Args:
        model, processor: a [`MemoryBankQFormerForConditionalGeneration`] with a memory and a vision tower, and its
            [`MemoryBankQFormerProcessor`].
        question (`str`, defaults to `""`): the text that the Q-Former reads while it watches. Other questions are
            answered from what the memory has kept, see [`replay_memory`].
        chunk_size (`int`, defaults to 8): frames in one pass of the vision tower. With 1, frames of a live source are
            read without delay.
        memory ([`MemoryBank`], *optional*): the memory of earlier frames. It grows in place. If it was filled with
            another question, it stays as it is, and a replay of it grows instead.

    Raises:
        ValueError: if the model has no memory, the question is too long, or the memory was filled by another model.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        question: str = "",
        chunk_size: int = 8,
        memory: MemoryBank | None = None,
    ):
        if not model.base_model.has_memory:
            raise ValueError("This model has no memory (`memory_bank_length=0`), so it cannot watch frame by frame.")
        self.model, self.processor, self.question, self.chunk_size = model.eval(), processor, question, chunk_size
        self._text = self._qformer_inputs(question)
        fingerprint = _fingerprint(model.base_model.query_tokens)
        if memory is None:
            memory = MemoryBank(model.config.memory_bank_length, model.config.memory_policy)
        elif memory.batch_size:
            if memory.origin.get("model", fingerprint) != fingerprint:
                raise ValueError("The memory was filled by another model: go on with that one, or begin without it.")
            memory = memory.to(model.device)
            if not self._fits(memory):
                kept = memory.origin
                memory, _ = replay_memory(model.base_model, memory, **self._text)
                memory.origin = dict(kept)
        self.memory = memory
        self.memory.origin |= {"model": fingerprint, "text": question}

    @property
    def frames_seen(self) -> int:
        """Number of frames read so far, including those of the memory that the watcher began with."""
        return int(self.memory.frames_seen.sum())

    def watch(self, frames: Iterable[Any]) -> Iterator[int]:
        """Read frames, any iterable of images of one size: PIL images or arrays (height, width, channels) uint8. Gives
        `frames_seen` after each: the caller may then ask, save, or stop. If their source raises an error, all frames
        before it are read first."""
        options, errors = {"do_sample_frames": False, "num_crops": 1, "return_tensors": "pt"}, list[Exception]()
        read = until_error(frames, errors)
        while chunk := [*islice(read, self.chunk_size)]:
            inputs = self.processor.video_processor(chunk, **options).to(self.model.device, self.model.dtype)
            with torch.no_grad():
                vision_embeds = self.model.base_model.get_vision_embeds(inputs["pixel_values"])
            for frame in vision_embeds.split(1, dim=1):
                with torch.no_grad():
                    self.model.base_model(vision_embeds=frame, memory=self.memory, **self._text)
                yield self.frames_seen
        if errors:
            raise errors[0]

    def update(self, frames: Iterable[Any]) -> int:
        """Call [`~VideoWatcher.watch`] for all frames, and return `frames_seen`."""
        for _ in self.watch(frames):
            pass
        return self.frames_seen

    @torch.no_grad()
    def answer(self, question: str | None = None, **generate_kwargs: Any) -> str:
        """Answer a question about all frames so far, by default that of the watcher; another one is answered from a
        replay of the memory, which is not changed. The options are those of the model's `generate`. It is a
        `ValueError` if no frame was read yet, or the question is too long."""
        if not self.frames_seen:
            raise ValueError("There is nothing to answer about yet: watch at least one frame.")
        question = self.question if question is None else question
        text, inputs = self._qformer_inputs(question), self._language_model_inputs(question)
        queries = self.memory.last_queries
        if queries is None or (text and question != self.question):
            _, queries = replay_memory(self.model.base_model, self.memory, **text)
        ids = self.model.generate(
            video_embeds=self.model.base_model.language_projection(queries.to(self.model.dtype)),
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            **generate_kwargs,
        )
        return self.processor.batch_decode(ids, skip_special_tokens=True)[0].strip()

    def check_question(self, question: str) -> None:
        """Check that a question can be answered, before hours are spent on watching: it is a `ValueError` if it is too
        long for the Q-Former."""
        self._qformer_inputs(question)
        self._language_model_inputs(question)

    def save(self, path: str | os.PathLike) -> None:
        """Write the memory with [`MemoryBank.save`], complete or not at all. The file also holds the question, and a
        hash by which the model is recognised."""
        self.memory.save(path)

    def _qformer_inputs(self, question: str) -> dict[str, torch.Tensor]:
        if not self.model.config.use_qformer_text_input:
            return {}
        inputs = self.processor(qformer_text=question, return_tensors="pt")
        length = inputs["qformer_input_ids"].shape[1]
        longest = self.model.config.qformer_config.max_position_embeddings
        if length > longest:
            raise ValueError(
                f"{question!r} has {length} tokens, but the Q-Former reads at most {longest}: shorten it."
            )
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

    def _language_model_inputs(self, question: str) -> Any:
        return self.processor(text=question, return_tensors="pt").to(self.model.device)

    def _fits(self, memory: MemoryBank) -> bool:
        """Whether the memory was filled with this text."""
        if not self._text:
            return True
        ids = self._text["qformer_input_ids"].masked_fill(self._text["qformer_attention_mask"] == 0, -1)
        return memory.text_ids is not None and torch.equal(memory.text_ids, ids)


def _fingerprint(weights: torch.Tensor) -> str:
    """A hash of the signs of the weights. They are the same in every precision."""
    return hashlib.sha256(torch.signbit(weights.detach()).cpu().numpy().tobytes()).hexdigest()
