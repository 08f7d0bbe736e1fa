"""`hf-video predict`: classifies videos."""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from hf_video.loading.models import load_trained_model

from .bulk import check_options, model_device, run_bulk_command
from .command_line import add_flags

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from hf_video.data.video_listing import ListedVideo
    from hf_video.processing import VideoClipProcessor

DESCRIPTION = """\
Classify videos. FILE is a video file, a URL, a folder of frames, a folder with videos inside, a list of videos (CSV,
list, JSON, or a manifest), or a data set.

A file that fails is reported, and listed once more at the end; the others are classified all the same. The exit code
is then 1.

With --engine, for millions of videos, each video becomes a row in Parquet files, with its classes or its error.
"""


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "predict",
        help="classify videos",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("videos", nargs="+", metavar="FILE", help="what to read, see above")
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares its options."""
    from .command_settings import PREDICT

    add_flags(parser, PREDICT)


def run(args: argparse.Namespace) -> int:
    """Prints the most likely classes of every file."""
    check_options(args)
    if args.engine is not None:
        return _predict_in_bulk(args)
    if args.output is not None:
        raise ValueError(f"--output {args.output} has no effect without --engine local or --engine ray.")
    videos = _name_videos(args.videos, args.video_root)
    model, processor = _load(args, args.device)
    failed: list[str] = []
    for video, scores, error in _classify(model, processor, videos, args.batch_size, args.reading_threads):
        if error is not None:
            if args.debug:
                traceback.print_exception(error)
            reason = str(error) or type(error).__name__
            failed.append(video)
            if args.json:
                print(json.dumps({"video": video, "error": reason}), flush=True)
            else:
                print(f"{video}\n  cannot be classified: {reason}", file=sys.stderr)
            continue
        top = scores.topk(min(args.top_k, len(scores)))
        predictions = [
            {"label": model.config.id2label[index], "score": score}
            for score, index in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]
        if args.json:
            print(json.dumps({"video": video, "predictions": predictions}), flush=True)
        else:
            print(video)
            for prediction in predictions:
                print(f"  {prediction['score']:6.1%}  {prediction['label']}", flush=True)
    if failed:
        print(f"{len(failed)} of {len(videos)} files failed:", *failed, sep="\n  ", file=sys.stderr)
    return 1 if failed else 0


def _load(args: argparse.Namespace, device: str) -> tuple[PreTrainedModel, VideoClipProcessor]:
    views = {"num_clips": args.num_clips, "num_crops": args.num_crops}
    return load_trained_model(args.model, device=device, dtype=args.dtype, **views)


def _predict_in_bulk(args: argparse.Namespace) -> int:
    from hf_video.data.video_listing import list_videos
    from hf_video.jobs.bulk_tasks import PredictTask
    from hf_video.loading.class_names import class_names_of

    if args.output is None:
        raise ValueError(f"--engine {args.engine} writes Parquet files: say where with --output DIR.")
    for name in ("json", "reading_threads"):
        if name in args.given:
            raise ValueError(f"{args.given[name][0]} has no effect with --engine.")
    videos = list_videos(args.videos, args.video_root)
    model, processor = _load(args, model_device(args))
    task = PredictTask(processor, class_names_of(model.config), args.top_k)
    return run_bulk_command(args, videos, task, model)


def _name_videos(words: Sequence[str], video_root: str | None) -> list[ListedVideo]:
    """The videos that words name, in their order. A word that names one video stands for itself, whatever it is."""
    from hf_video.data.video_listing import ListedVideo, list_videos, names_several

    found: list[ListedVideo] = []
    for word in words:
        found += list_videos([word], video_root) if names_several(word) else [ListedVideo(word, word)]
    return found


class _Clips:
    """The clips (num_views, num_frames, num_channels, height, width) of videos, or what was raised instead."""

    def __init__(self, processor: VideoClipProcessor, videos: Sequence[ListedVideo]):
        self.processor = processor
        self.videos = videos

    def __len__(self) -> int:
        return len(self.videos)

    def __getitem__(self, index: int) -> torch.Tensor | Exception:
        try:
            inputs = self.processor(self.videos[index].open(), return_tensors="pt")
            return inputs[self.processor.model_input_names[0]]
        # There is no complete list of the errors that a decoder raises for strange files.
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # They may hold the frames of a video that is too large.
            return error

    def complete_batch(self, items: list, indices: list[int]) -> list:
        """Nothing replaces a video that cannot be read; see `ReadAheadLoader`."""
        return items


def _classify(
    model, processor, videos: Sequence[ListedVideo], batch_size: int, reading_threads: int | None
) -> Iterator[tuple]:
    """Yields (name, scores of the classes, None) or (name, None, error) for each video, in the order given."""
    from hf_video.data import ReadAheadLoader

    loader = ReadAheadLoader(
        _Clips(processor, videos), batch_size=batch_size, reading_threads=reading_threads, collate_fn=list
    )
    waiting = (video.source for video in videos)
    for items in loader:
        batch = list(islice(waiting, len(items)))
        read = dict(zip(batch, items, strict=True))
        clips = {video: item for video, item in read.items() if not isinstance(item, Exception)}
        errors = {video: item for video, item in read.items() if isinstance(item, Exception)}
        scores, failures = _score(model, clips) if clips else ({}, {})
        errors |= failures
        for video in batch:
            yield video, scores.get(video), errors.get(video)


def _score(model, clips: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, Exception]]:
    """The scores (num_classes,) of each video, and the errors of those that have none. If a batch fails, its videos
    are tried alone: they may differ in size, or need too much memory together."""
    import torch

    from hf_video.inference import predict_scores

    scores: dict[str, torch.Tensor] = {}
    errors: dict[str, Exception] = {}
    try:
        found = predict_scores(model, torch.cat([*clips.values()]))
    except Exception as error:
        if len(clips) == 1:
            return scores, dict.fromkeys(clips, error)
    else:
        for video, of_video in zip(clips, found, strict=True):
            if of_video.isfinite().all():
                scores[video] = of_video
            else:
                errors[video] = ValueError("the model's scores of this video are not finite")
        return scores, errors
    for video, clip in clips.items():
        of_one, failure = _score(model, {video: clip})
        scores |= of_one
        errors |= failure
    return scores, errors
