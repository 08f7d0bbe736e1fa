"""`hf-video evaluate`: measures a trained model on labelled or captioned videos, or a file of detections
or segments."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any, cast

from hf_video.inference.inference_settings import EvaluateSettings
from hf_video.io import replace_text
from hf_video.output_folders import check_output_file
from hf_video.settings import setting

from .command import Command

_PARTS = {
    "held out": "The training of {model} held these videos out; --split train measures those that it was trained on",
    "trained on": "{model} was trained on these videos; --split validation measures those that its training held out",
}


@dataclass(kw_only=True)
class EvaluateCommandSettings(EvaluateSettings):
    """Output"""

    json: bool = setting(False, "Print one JSON object, of classes with the confusion matrix.")
    output: str | None = setting(None, "Also write the JSON object to FILE, which must not exist.", "FILE")


def run(settings: EvaluateCommandSettings) -> int:
    """Prints the metrics, and writes the files that the options name."""
    names = ("output", "predictions", "detections")
    output, *tables = (check_output_file(name, getattr(settings, name)) for name in names)
    for name, table in zip(names[1:], tables, strict=True):
        if output is not None and table is not None and output.resolve() == table.resolve():
            raise ValueError(f"--output and --{name} are both {output}. Give each its own file.")

    def tell(result: dict[str, Any]) -> None:
        try:
            if output is not None:
                check_output_file("output", settings.output)
                replace_text(output, json.dumps(result, indent=2) + "\n")
        finally:  # after a full disk the figures are still printed
            for warning in result.get("warnings", ()):
                print(f"warning: {warning}", file=sys.stderr)
            print(json.dumps(result)) if settings.json else _SHOWN_BY[settings.task](result)

    if settings.task == "action-detection":
        from hf_video.inference import evaluate_detections

        tell(evaluate_detections(settings))
    elif settings.task == "retrieval":
        from hf_video.inference import evaluate_retrieval

        tell(evaluate_retrieval(settings))
    elif settings.task == "frame-classification":
        from hf_video.training import evaluate_frame_classes

        tell(evaluate_frame_classes(settings))
    elif settings.task == "segments":
        from hf_video.inference import evaluate_segments, read_ground_truth, read_predictions

        truth = read_ground_truth(cast(str, settings.ground_truth), settings.subset)
        tell(evaluate_segments(read_predictions(settings.data), truth, settings.tiou))
    else:
        from hf_video.training import evaluate

        evaluate(settings, tell)
    return 0


def _say_what_is_known(result: dict[str, Any]) -> None:
    """Which part of the training's data these are, and a line for each split that has some of the videos."""
    from hf_video.metrics import tell_count

    if part := result.get("part_of_training"):
        print(_PARTS[part].format(**result))
    for split, count in result.get("known_videos", {}).items():
        if count:
            use = "trained on" if split == "train" else "used to choose the checkpoint"
            print(
                f"warning: {count} of these {tell_count(result)} were {use}: the figures are better than those of "
                "other videos would be"
            )


def _print_table(result: dict[str, Any]) -> None:
    from hf_video.metrics import measured_in, tell_count

    print(f"{tell_count(result)} of the {result['split']} split, {result['views']} each")
    _say_what_is_known(result)
    for metric, value in measured_in(result):
        print(f"{metric.title}  {metric.text(value)}")
    measure = "class_accuracy" if "class_accuracy" in result else "class_average_precision"
    title = {"class_accuracy": "recall", "class_average_precision": "average precision"}[measure]
    width = max(map(len, result["class_names"]))
    print(f"\n{'class':{width}}  support  {title}")
    for name, count, value in zip(result["class_names"], result["class_videos"], result[measure], strict=True):
        if count:
            print(f"{name:{width}}  {count:7d}  {value:{len(title)}.1%}")
    _print_broken(result)


def _print_recalls(result: dict[str, Any]) -> None:
    print(f"{result['num_videos']} videos and {result['num_texts']} texts of the {result['split']} split")
    print("\nrecall            R@1    R@5   R@10")
    kinds = {"dual_encoder": "dual encoder", "reranked": f"the {result.get('k_test')} best ranked again"}
    for kind, title in kinds.items():
        if kind in result:
            print(title)
            for direction in ("text_to_video", "video_to_text"):
                cells = (f"{result[kind][f'{direction}_r{k}']:6.2f}" for k in (1, 5, 10))
                print(f"  {direction.replace('_', ' '):13}", *cells)
    _print_broken(result)


def _print_precisions(result: dict[str, Any]) -> None:
    if "num_key_frames" in result:
        print(f"{result['num_key_frames']} key frames of the {result['split']} split")
    print(f"mAP at IoU 0.5  {result['mean_ap']:.2%}\n")
    width = max(map(len, ["action", *result["ap"]]))
    print(f"{'action':{width}}  average precision")
    for name, value in result["ap"].items():
        print(f"{name:{width}}  {'-' if value is None else f'{value:.2%}':>17}")
    _print_broken(result)


def _print_frames(result: dict[str, Any]) -> None:
    print(f"{result['num_frames']} frames of {result['num_videos']} videos of the {result['split']} split")
    _say_what_is_known(result)
    print(f"right frames  {result['frame_accuracy']:.1%}")
    if result["edit_score"] is not None:
        print(f"edit score    {result['edit_score']:.1%}")
    width = max(map(len, ["all", *result["classes"]]))
    head = "".join(f"  {f'F1@{tiou * 100:.0f}':>7}" for tiou in result["tious"])
    print(f"\n{'class':{width}}{head}  segments")
    for name, each in {"all": result, **result["classes"]}.items():
        if each["f1"] is not None:
            print(f"{name:{width}}{_percents(each['f1'])}  {each['num_segments']:8d}")
    _print_broken(result)


def _print_segments(result: dict[str, Any]) -> None:
    # A name of several lines would break the table.
    names = [" ".join(label.split()) for label in result["classes"]]
    width = max(map(len, ["median border error", *names]))
    head = f"{'temporal IoU':{width}}" + "".join(f"  {tiou:7.2f}" for tiou in result["tious"])
    shares = {"average precision": "mean_average_precision", "precision": "precision", "recall": "recall", "F1": "f1"}
    borders = {"median border error": "median_border_error", "90% of them below": "p90_border_error"}
    lines = [
        f"{result['num_segments']} segments of {len(result['classes'])} classes in {result['num_videos']} videos, "
        f"{result['num_predictions']} predictions",
        "",
        f"{head}     mean",
    ]
    lines += [f"{title:{width}}{_percents(result[key])}" for title, key in shares.items()]
    lines[3] += f"  {result['average_map']:7.1%}"
    for title, key in borders.items():
        cells = ("-" if value is None else f"{value:.2f} s" for value in result[key])
        lines.append(f"{title:{width}}" + "".join(f"  {cell:>7}" for cell in cells))
    lines += ["", f"{'average precision':{width}}" + head[width:] + "  segments"]
    lines += [
        f"{label:{width}}{_percents(each['average_precision'])}  {each['num_segments']:8d}"
        for label, each in zip(names, result["classes"].values(), strict=True)
    ]
    print(*lines, sep="\n")


def _percents(values: list[float]) -> str:
    return "".join(f"  {value:7.1%}" for value in values)


def _print_broken(result: dict[str, Any]) -> None:
    if broken := result.get("broken_videos"):
        print(f"\n{len(broken)} videos could not be read:", *broken, sep="\n  ")


_SHOWN_BY = {
    "classification": _print_table,
    "retrieval": _print_recalls,
    "action-detection": _print_precisions,
    "frame-classification": _print_frames,
    "segments": _print_segments,
}

COMMAND = Command(
    name="evaluate",
    settings=EvaluateCommandSettings,
    run=run,
    help="measure a trained model on labelled or captioned videos, or detected actions or segments",
    description="Measure top-1 and top-5 accuracy, or mean average precision where a video may have several "
    "classes. Probabilities are averaged over the views of a video. With --task retrieval, DATA are videos with "
    "`caption`, a text or a list, in a JSON file as those of MSRVTT and DiDeMo, or as for `hf-video train --task "
    "retrieval`: R@1, R@5 and R@10 of search among videos by text, and among texts by video. With --task "
    "action-detection, DATA are persons at key frames, as for `hf-video train --task action-detection`, or a file of "
    "detections with --ground-truth: mean average precision at IoU 0.5. With --task "
    "frame-classification, DATA are segments of long videos, as for `hf-video train --task frame-classification`: the "
    "share of right frames, edit score and F1 of segments as MS-TCN measures them. With --task segments, DATA are "
    "predicted segments of untrimmed videos in ActivityNet's layout, as `hf-video timeline` writes them, and "
    "--ground-truth the annotated ones: average precision at thresholds of temporal IoU, as ActivityNet "
    "defines it, and precision, recall, F1 and border errors of all predictions.",
)
