"""`hf-video predict`: the classes of single videos."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

from .option_types import positive_int
from .trained_model import add_model_options, load_trained_model


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "predict",
        help="classify videos",
        description="Classify videos. A file that cannot be read is reported, the others are classified all the same; "
        "the exit code is then 1.",
    )
    parser.add_argument("videos", nargs="+", metavar="FILE", help="video files, URLs, or folders of frames")
    add_model_options(parser)
    parser.add_argument("--top-k", type=positive_int, default=5, metavar="K", help="classes shown a video; default 5")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the most likely classes of every file."""
    model, processor = load_trained_model(
        args.model, device=args.device, dtype=args.dtype, num_clips=args.num_clips, num_crops=args.num_crops
    )
    failed = False
    for video, scores, error in _classify(model, processor, args.videos, args.batch_size):
        if error is not None:
            failed = True
            if args.json:
                print(json.dumps({"video": video, "error": error}), flush=True)
            else:
                print(f"{video}\n  cannot be read: {error}", file=sys.stderr)
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
    return 1 if failed else 0


def _classify(model, processor, videos: Sequence[str], batch_size: int) -> Iterator[tuple]:
    """(video, scores of the classes, None), or (video, None, what was wrong), in the order given."""
    import torch

    from hf_video.processing import VideoReadError
    from hf_video.training import predict_scores

    for first in range(0, len(videos), batch_size):
        clips, errors = {}, {}
        for video in dict.fromkeys(videos[first : first + batch_size]):
            try:
                clips[video] = processor(video, return_tensors="pt")["pixel_values"]
            except VideoReadError as error:
                errors[video] = str(error)
        scores = {}
        if clips:
            scores = dict(zip(clips, predict_scores(model, torch.cat([*clips.values()])), strict=True))
        for video in videos[first : first + batch_size]:
            yield video, scores.get(video), errors.get(video)
