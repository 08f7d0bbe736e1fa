"""Watching a video that goes on: frames in, answers out, with time and memory that do not grow."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from .memory_bank import MemoryBank
from .memory_replay import replay_memory


class VideoWatcher:
    """
    Reads frames as they come and answers questions about all of them at any time.

        watcher = VideoWatcher(model, processor, "what is the person doing?")
        for _ in watcher.watch(camera):
            if watcher.frames_seen % 100 == 0:
                print(watcher.answer())

    Args:
        model ([`MemoryBankQFormerForConditionalGeneration`]): with a memory and a vision tower.
        processor ([`MemoryBankQFormerProcessor`]): its own.
        question (`str`, defaults to `""`): what the Q-Former looks for while it watches. Other questions are answered
            from what the memory kept, see [`replay_memory`].
        prompt (`str`, defaults to `"{}"`): the text around a question, as the model was trained with, for example
            `"Question: {} Short answer:"`.
        chunk_size (`int`, defaults to 8): frames that the vision tower takes at once. A live source with 1 is
            answered about without delay.
        memory ([`MemoryBank`], *optional*): of frames seen before, grown in place. One that was filled with another
            question is replayed.

    Raises:
        ValueError: if the model has no memory, or the memory is of several videos.
    """

    def __init__(
        self,
        model: Any,
        processor: Any,
        question: str = "",
        prompt: str = "{}",
        chunk_size: int = 8,
        memory: MemoryBank | None = None,
    ):
        if chunk_size < 1:
            raise ValueError(f"chunk_size is {chunk_size}; at least 1 frame is expected.")
        if not model.base_model.has_memory:
            raise ValueError("This model has no memory (`memory_bank_length=0`), so it cannot watch frame by frame.")
        if memory is not None and memory.batch_size > 1:
            raise ValueError(f"The memory is of {memory.batch_size} videos: `take` one of them.")
        self.model, self.processor = model.eval(), processor
        self.question, self.prompt, self.chunk_size = question, prompt, chunk_size
        self._text = self._qformer_inputs(question)
        # The queries after the last frame, which a memory does not hold.
        self._queries: torch.Tensor | None = None
        self.memory = memory
        if memory is not None and memory.batch_size:
            self.memory = memory.to(model.device)
            if not self._fits(self.memory):
                self.memory, self._queries = replay_memory(model.base_model, self.memory, **self._text)

    @property
    def frames_seen(self) -> int:
        """Frames so far, with those of the memory that the watcher began with."""
        return int(self.memory.frames_seen.sum()) if self.memory is not None else 0

    def watch(self, frames: Iterable[Any]) -> Iterator[int]:
        """
        Read frames, one after the other.

        Args:
            frames: from anywhere, a generator or a list: images of one size, PIL images or arrays (height, width,
                channels), uint8.

        Yields:
            `frames_seen`, after each frame. Here the caller may answer, save, or stop.
        """
        frames = iter(frames)
        while chunk := list(islice(frames, self.chunk_size)):
            pixel_values = self.processor.video_processor(
                chunk, do_sample_frames=False, num_crops=1, return_tensors="pt"
            )["pixel_values"]
            pixel_values = pixel_values.to(self.model.device, self.model.dtype)
            with torch.no_grad():
                vision_embeds = self.model.base_model.get_vision_embeds(pixel_values)
            for frame in vision_embeds.split(1, dim=1):
                with torch.no_grad():
                    outputs = self.model.base_model(
                        vision_embeds=frame, memory=self.memory, return_dict=True, **self._text
                    )
                self.memory, self._queries = outputs.memory, outputs.last_hidden_state
                yield self.frames_seen

    def update(self, frames: Iterable[Any]) -> int:
        """[`~VideoWatcher.watch`] to the end of the frames; returns `frames_seen`."""
        for _ in self.watch(frames):
            pass
        return self.frames_seen

    @torch.no_grad()
    def answer(self, question: str | None = None, **generate_kwargs: Any) -> str:
        """
        Answer a question about all that was seen.

        Args:
            question (`str`, *optional*): the one that the watcher has by default. Another one is answered from a
                replay of the memory, which is left as it is.
            generate_kwargs: as for the model's `generate`.

        Raises:
            ValueError: if there was no frame yet.
        """
        if self.memory is None or not self.frames_seen:
            raise ValueError("There is nothing to answer about yet: watch at least one frame.")
        question = self.question if question is None else question
        text, queries = self._qformer_inputs(question), self._queries
        if queries is None or not _equal(text, self._text):
            _, queries = replay_memory(self.model.base_model, self.memory, **text)
        inputs = self.processor(text=self.prompt.format(question), return_tensors="pt").to(self.model.device)
        ids = self.model.generate(
            video_embeds=self.model.base_model.language_projection(queries),
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            **generate_kwargs,
        )
        return self.processor.batch_decode(ids, skip_special_tokens=True)[0].strip()

    def save(self, path: str | os.PathLike) -> None:
        """
        Write the memory, complete or not at all, as [`MemoryBank.save`] does; [`MemoryBank.load`] reads it.

        Raises:
            ValueError: if there was no frame yet, or the last one was interrupted while it entered the memory.
        """
        if self.memory is None or not self.frames_seen:
            raise ValueError("There is nothing to save yet: watch at least one frame.")
        self.memory.save(path)

    def _qformer_inputs(self, question: str) -> dict[str, torch.Tensor]:
        if self.processor.qformer_tokenizer is None:
            return {}
        inputs = self.processor(qformer_text=self.prompt.format(question), return_tensors="pt")
        return {name: tensor.to(self.model.device) for name, tensor in inputs.items()}

    @torch.no_grad()
    def _fits(self, memory: MemoryBank) -> bool:
        """Whether the memory was filled with this text: the input of the first layer is the same for every frame."""
        if not memory.query:
            return True
        base = self.model.base_model
        expected = base.qformer.embeddings(base.query_tokens, self._text.get("qformer_input_ids"))
        bank = memory.query[0]
        return bank.size == expected.shape[1:] and torch.allclose(bank.states[:, 0], expected.float(), atol=1e-3)


def _equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


__all__ = ["VideoWatcher"]
