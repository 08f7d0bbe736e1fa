"""`hf-video evaluate`: accuracy of a trained model on labelled videos."""

import argparse
import json
from pathlib import Path

from .option_types import VIDEO_ROOT_HELP, non_negative_int
from .trained_model import add_model_options, load_trained_model


def add_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    """Declares the command."""
    parser = commands.add_parser(
        "evaluate",
        help="measure a trained model on labelled videos",
        description="Measure top-1 and top-5 accuracy. Probabilities are averaged over the views of a video.",
    )
    parser.add_argument("data", metavar="DATA", help="folder or CSV file of labelled videos, as for `hf-video train`")
    parser.add_argument("--video-root", metavar="DIR", help=VIDEO_ROOT_HELP)
    add_model_options(parser)
    parser.add_argument("--split", help="default: test if DATA has it, else validation, else train")
    parser.add_argument(
        "--num-workers", type=non_negative_int, default=0, metavar="N", help="processes that read videos; default 0"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the confusion matrix")
    parser.add_argument("--output", metavar="FILE", help="also write the JSON object to FILE, which must not exist")
    parser.add_argument(
        "--predictions",
        metavar="FILE",
        help="also write a table of all videos, .csv or .parquet, which must not exist",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Prints the metrics; writes nothing unless asked to."""
    output, table = (_check_output(name, getattr(args, name)) for name in ("output", "predictions"))

    import numpy as np
    from transformers import EvalPrediction

    from hf_video.data import ClipDataset, load_video_dataset
    from hf_video.training import (
        calibration_error,
        compute_metrics,
        confusion_matrix,
        evaluate_dataset,
        per_class_accuracy,
        write_predictions,
    )
    from hf_video.training.loading import class_names_of
    from hf_video.training.predictions import check_table_name

    if table is not None:
        check_table_name(table)
    data = load_video_dataset(args.data, video_root=args.video_root)
    split = args.split or next(name for name in ("test", "validation", "train") if name in data)
    if split not in data:
        raise ValueError(f"--split {split}: {args.data} only has {', '.join(data)}.")
    model, processor = load_trained_model(
        args.model, device=args.device, dtype=args.dtype, num_clips=args.num_clips, num_crops=args.num_crops
    )
    names = class_names_of(model.config)
    data = load_video_dataset(args.data, labels=names, video_root=args.video_root)

    dataset = ClipDataset(data[split], processor, training=False)
    scores, labels = evaluate_dataset(model, dataset, batch_size=args.batch_size, num_workers=args.num_workers)
    metrics = compute_metrics(EvalPrediction(predictions=scores, label_ids=labels))
    counts = confusion_matrix(scores, labels)
    result = {
        "model": args.model,
        "data": args.data,
        "split": split,
        "num_videos": len(labels),
        "views": f"{processor.num_clips} clips x {processor.num_crops} crops",
        **metrics,
        "mean_class_accuracy": float(np.nanmean(per_class_accuracy(scores, labels))),
        "calibration_error": calibration_error(scores, labels),
        "class_names": names,
        "confusion_matrix": counts.tolist(),
    }
    if output is not None:
        output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if table is not None:
        write_predictions(table, videos=data[split]["video"], scores=scores, labels=labels, class_names=names)
    if args.json:
        print(json.dumps(result))
    else:
        _print_table(result)
    return 0


def _check_output(name: str, file: str | None) -> Path | None:
    if file is None:
        return None
    path = Path(file)
    if path.exists():
        raise ValueError(f"--{name} {path} exists. Choose another name: results are never overwritten.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--{name} {path}: the folder {path.absolute().parent} does not exist.")
    return path


def _print_table(result: dict) -> None:
    print(f"{result['num_videos']} videos of the {result['split']} split, {result['views']} each")
    titles = {"top1_accuracy": "top-1 accuracy", "top5_accuracy": "top-5 accuracy"}
    titles |= {"mean_class_accuracy": "mean of classes", "calibration_error": "calibration error"}
    for key, title in titles.items():
        if key in result:
            print(f"{title}  {result[key]:.2%}")
    width = max(map(len, result["class_names"]))
    print(f"\n{'class':{width}}  videos  recognised")
    for index, (name, row) in enumerate(zip(result["class_names"], result["confusion_matrix"], strict=True)):
        if total := sum(row):
            print(f"{name:{width}}  {total:6d}  {row[index] / total:10.1%}")
