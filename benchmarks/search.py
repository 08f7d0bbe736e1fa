"""
How long `hf-video search` takes among 100,000 clips, as a fresh command, by part; and re-ranking of 128 clips.

The model has the sizes of the released ones (VideoMamba-M with 8 frames of 224 x 224, BERT-base) and random weights.
The vectors of the index are random but for 128 that lie close to the text: these are of videos that exist, so that
re-ranking reads them again. Commands run several times, and the median of each part is printed. It takes seven minutes
on 2 CPU cores, six of them for the 128 clips that are read and encoded again.

    python benchmarks/search.py [--clips 100000] [--rerank 128] [--rounds 5] [--smoke]
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from helpers.measurement import make_parser, print_machine
from helpers.scene_video import encode_scene
from transformers import BertConfig, BertTokenizer

from hf_video import (
    VideoClipProcessor,
    VideoMambaConfig,
    VideoTextDualEncoderConfig,
    VideoTextDualEncoderModel,
    VideoTextDualEncoderProcessor,
)
from hf_video.inference import VideoSearch
from hf_video.inference.video_index import read_clips
from hf_video.inference.video_text import adapter_of
from hf_video.jobs import IndexTask, ParquetParts
from hf_video.loading.models import SearchModel, load_search_model

TEXT = "a glass breaks on the floor"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *TEXT.split()]
PART = 12_800
STEPS = ("loading", "encoding", "search", "reranking")


def save_model(folder: Path, is_small: bool) -> None:
    torch.manual_seed(0)
    size = 32 if is_small else 224
    vision = VideoMambaConfig.preset("middle", image_size=size, num_frames=8)
    text: dict[str, Any] = {}
    if is_small:
        vision = VideoMambaConfig(image_size=size, num_frames=8, hidden_size=16, num_hidden_layers=1)
        text = {"hidden_size": 24, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 2}
    config = VideoTextDualEncoderConfig(
        vision_config=vision, text_config=BertConfig(**text), fusion_layer=1 if is_small else 9
    )
    VideoTextDualEncoderModel(config).save_pretrained(folder)
    square = {"size": {"height": size, "width": size}, "do_center_crop": False}
    clips = VideoClipProcessor(num_frames=8, sampling_strategy="middle", resample=3, **square)
    tokenizer = BertTokenizer({word: number for number, word in enumerate(WORDS)})
    VideoTextDualEncoderProcessor(clips, tokenizer).save_pretrained(folder)


def write_index(folder: Path, model: SearchModel, name: str, videos: list[str], num_clips: int) -> None:
    """An index of random vectors, of which those of `videos` lie close to the text. It has no other videos."""
    task = IndexTask(model)
    sink = ParquetParts(str(folder), task.key(model.network), notes={"model": name})
    sink.claim()
    random = np.random.default_rng(0)
    with torch.inference_mode():
        text = adapter_of(model.network).embed_texts(model.tokenize([TEXT])).vectors[0].numpy()
    for part, start in enumerate(range(0, num_clips, PART)):
        number = min(PART, num_clips - start)
        vectors = random.standard_normal((number, task.width), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        paths = [f"/nowhere/{start + row}.mp4" for row in range(number)]
        if part == 0:
            paths[: len(videos)] = videos
            vectors[: len(videos)] = 0.5 * text + 0.1 * vectors[: len(videos)]
        columns = {"key": paths, "path": paths, "error": pa.nulls(number, pa.string())}
        columns |= {"start": np.zeros(number), "end": np.ones(number)}
        columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), task.width)
        sink.write_rows(f"part-{part:06d}-{'0' * 16}.parquet", [pa.table(columns)])


def run_command(index: Path, *options: str) -> dict[str, float]:
    """Seconds of each step, and of the whole process, of a fresh `hf-video search`."""
    words = [sys.executable, "-m", "hf_video.cli", "search", TEXT, "--index", str(index), "--device", "cpu", *options]
    begin = time.perf_counter()
    completed = subprocess.run(words, capture_output=True, text=True)
    whole = time.perf_counter() - begin
    if completed.returncode:
        sys.exit(completed.stderr)
    found = dict(re.findall(rf"({'|'.join(STEPS)}) (\d+\.\d+) s", completed.stderr))
    return {name: float(seconds) for name, seconds in found.items()} | {"whole process": whole}


def print_steps(title: str, rounds: list[dict[str, float]]) -> None:
    print(title)
    for name in rounds[0]:
        seconds = [each[name] for each in rounds]
        print(f"  {name:14}{1000 * statistics.median(seconds):9.1f} ms, least {1000 * min(seconds):.1f}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--clips", type=int, default=100_000, help="clips of the index (default: 100000)")
    parser.add_argument("--rerank", type=int, default=128, help="clips to re-rank (default: 128)")
    parser.add_argument("--rounds", type=int, default=5, help="fresh commands (default: 5)")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.clips, arguments.rerank, arguments.rounds = 300, 4, 1
    print_machine("torch", "transformers", "pyarrow", threads=torch.get_num_threads())
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        name = str(folder / "model")
        save_model(folder / "model", arguments.smoke)
        model = load_search_model(name, device="cpu")
        encode_scene(folder / "0.mp4", 60, 30)
        videos = [str(folder / f"{row}.mp4") for row in range(arguments.rerank)]
        for path in videos[1:]:
            shutil.copy(videos[0], path)
        write_index(folder / "index", model, name, videos, arguments.clips)
        os.sync()
        found = [run_command(folder / "index") for _ in range(arguments.rounds)]
        print_steps(f"{arguments.clips} clips, a fresh command:", found)
        count = arguments.rerank
        result = VideoSearch(folder / "index", model, device="cpu").search(TEXT, top_k=count, rerank=count)
        if {hit.path for hit in result.hits} - set(videos):
            sys.exit("The clips close to the text were not found: no figure means anything.")
        seconds = result.seconds["reranking"]
        print(f"re-ranking of {count} clips: {seconds:.2f} s, {1000 * seconds / count:.1f} ms a clip")
        begin = time.perf_counter()
        for path in videos:
            next(read_clips(model.processor, path))
        print(f"  without the network: {1000 * (time.perf_counter() - begin) / count:.1f} ms a clip")


if __name__ == "__main__":
    main()
