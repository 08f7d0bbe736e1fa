"""Writes the model card of a trained model from the facts of its training and from its files, with two templates."""

import html
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FileSystemLoader
from transformers.utils import VIDEO_PROCESSOR_NAME

from hf_video.auto import CLASSES
from hf_video.evaluation.audit import AUDIT_FILE, audit_rows, weights_of
from hf_video.io import read_object, read_own_json
from hf_video.loading.released import FACTS_FILE
from hf_video.metrics import METRICS, Metric, measured_in, tell_count, tell_views
from hf_video.settings import few

from .folder_checks import CARD
from .self_test import RECORD

logger = logging.getLogger(__name__)

REPORT = "report/metrics.json"
FEATURES = "feature-extraction"
DETECTOR = "AutoModelForObjectDetection"
# Transformers has no class for frames of videos, and the Hub no task. With a row in `PIPELINES` the Hub's page would
# show a pipeline, which runs the weights as a classifier of clips.
OF_FRAMES = "AutoModelForTokenClassification"
IMAGES = "AutoModelForImageClassification"
_OF_EVERY_EVALUATION = ("loss", "runtime", "per_second")
ANSWERS = "AutoModelForImageTextToText"
PIPELINES = {
    "AutoModelForVideoClassification": "video-classification",
    IMAGES: "image-classification",
    ANSWERS: "video-text-to-text",
    DETECTOR: "object-detection",
    "AutoModel": FEATURES,
    "AutoBackbone": FEATURES,
}


class Result(NamedTuple):
    """The value of a metric, with the data, the split and the views that it was measured on, and what is known of its
    chance. A detector is measured on key frames, which are counted in place of videos."""

    data: str
    split: str
    num_videos: int
    views: str
    metric: Metric
    value: float
    worth: str = ""


def cell(value: Any) -> str:
    """A value as text for a table or a sentence. Names that users chose must not become markup."""
    text = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)
    return html.escape(text, quote=False).replace("|", "\\|")


TEMPLATES = Environment(loader=FileSystemLoader(Path(__file__).parent), trim_blocks=True, lstrip_blocks=True)
TEMPLATES.filters["cell"] = cell


def read_facts(folder: Path) -> dict[str, Any]:
    """The facts in a model folder, with its report under `report`, and under `audit` that of its weights; empty if the
    folder has none. A damaged file is an `OSError` or a `ValueError`, see `io.read_object`."""
    facts = read_object(folder / FACTS_FILE) if (folder / FACTS_FILE).is_file() else {}
    for name, file in {"report": REPORT, "audit": AUDIT_FILE}.items():
        facts |= {name: read_object(folder / file)} if (folder / file).is_file() else {}
    if "audit" in facts and facts["audit"].get("weights") != weights_of(folder):
        del facts["audit"]
        logger.warning(f"{folder / AUDIT_FILE} is of other weights, so no card has it: run `hf-video audit` again.")
    return facts


def write_card(folder: Path, repo_id: str, facts: dict[str, Any], license: str | None = None) -> None:
    """Writes the card of the model in a folder, which is complete but for it.

    Args:
        folder: the card describes its configuration and weights.
        repo_id: `user/name`, the repository that the example loads.
        facts: facts from `read_facts`. The card leaves out what they do not have.
        license: as the Hub names licences.
    """
    config = read_object(folder / "config.json")
    processor, test = (read_own_json(folder / name) or {} for name in (VIDEO_PROCESSOR_NAME, RECORD))
    architecture, name = config["architectures"][0], repo_id.split("/")[-1]
    auto_class, labels = auto_class_of(architecture), config.get("id2label") or {}
    classifies, problem_type = "Classification" in auto_class, config.get("problem_type")
    has_texts, measured = config["model_type"] == "video_text_dual_encoder", results(facts, auto_class)
    num_frames = None if "num_frames" in config else processor.get("num_frames")
    text = TEMPLATES.get_template("model_card.md.jinja").render(
        metadata=metadata(name, config["model_type"], auto_class, facts, measured, license).to_yaml(),
        **{"name": name, "repo_id": repo_id, "architecture": architecture, "config": config, "facts": facts},
        **{"auto_class": auto_class, "source": facts.get("source"), "results": measured, "classifies": classifies},
        **{"has_texts": has_texts, "answers": auto_class == ANSWERS, "takes_images": auto_class == IMAGES},
        **{"of_frames": auto_class == OF_FRAMES, "detects": auto_class == DETECTOR},
        is_regression=problem_type == "regression" or (problem_type is None and len(labels) == 1),
        classes=labels if classifies or auto_class == DETECTOR else {},
        listed=few(map(cell, labels.values()), 8),
        usage=usage(repo_id, auto_class, num_frames=num_frames, has_texts=has_texts),
        test=test,
        runs_alone=processor.get("video_processor_type") == "VideoClipProcessor"
        and all("logits" in each for each in test.get("videos", {}).values()),
        pictures=sorted(folder.glob("report/*.png")),
        tables=_tables(facts),
        **_audited(facts),
    )
    (folder / CARD).write_text(text.strip() + "\n", encoding="utf-8")


def _audited(facts: dict[str, Any]) -> dict[str, Any]:
    """What was audited, and the rows of the table."""
    if "audit" not in facts:
        return {}
    found = facts["audit"]
    of_split = f"{tell_count(found)} of the {found['split']} split of {cell(Path(found['data']).name)}"
    known = found.get("known_videos", {}).get("train")
    return {"audited": of_split + (f", {known} of them trained on" if known else ""), "audit": audit_rows(found)}


def auto_class_of(architecture: str) -> str:
    """The Auto class that loads a model class of this package or of Transformers."""
    ours = {row.class_name: row.auto_class for row in CLASSES}
    heads = (f"AutoModelFor{match[1]}" for match in [re.search(r"For(\w+)$", architecture)] if match)
    return ours.get(architecture) or next(heads, "AutoModel")


def metadata(
    name: str,
    model_type: str,
    auto_class: str,
    facts: dict[str, Any],
    measured: list[Result],
    license: str | None = None,
) -> ModelCardData:
    """The metadata of a card, with the results as `model-index`. Data sets are named where they are on the Hub."""
    # The Hub has no pipeline for videos and texts.
    pipeline = None if model_type == "video_text_dual_encoder" else PIPELINES.get(auto_class)
    source, data = facts.get("source") or {}, facts.get("data", {})
    results = [
        EvalResult(
            task_type=pipeline or "video-classification",
            dataset_type=data.get("train", {}).get("hub_id", "unknown"),
            dataset_name=result.data,
            dataset_split=result.split,
            metric_type=result.metric.hub_type or result.metric.name,
            metric_name=f"{result.metric.title} ({result.views})",
            metric_value=round(result.value, 4),
        )
        for result in measured
    ]
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=pipeline,
        license=license,
        base_model=source["name"] if is_repository(source) else None,
        datasets=sorted({each["hub_id"] for each in data.values() if each.get("hub_id")}) or None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        tags=["hf_video", "video", model_type],
        model_name=name,
        eval_results=results or None,
    )


def results(facts: dict[str, Any], auto_class: str) -> list[Result]:
    """The metrics that the facts of a training state: on the report's split, and on the validation split.

    A model of features has none: the facts beside it are those of a classifier.
    """
    if PIPELINES.get(auto_class) == FEATURES:
        return []
    data, views, report = (facts.get(name, {}) for name in ("data", "views", "report"))
    name = data.get("train", {}).get("name", "own videos")
    protocol = tell_views(views.get("num_clips", 1), views.get("num_crops", 1))
    protocol = {DETECTOR: "1 clip a key frame", OF_FRAMES: "all frames"}.get(auto_class, protocol)
    counted = "num_key_frames" if auto_class == DETECTOR else "num_videos"
    measured = [(report.get("split"), report.get(counted), measured_in(report))]
    if report.get("split") != "validation":
        number = data.get("validation", {}).get(counted, 0)
        validation = facts.get("validation", {})
        measured.append(("validation", number, [*measured_in(validation, "eval_"), *_own_metrics(validation)]))
    found = [Result(name, split, number, protocol, *row) for split, number, rows in measured for row in rows]
    if "chance" in report and found and found[0].split == report["split"]:
        low, high = report.get("top1_interval") or report["interval"]
        worth = f" (95% interval {low:.1%} to {high:.1%}, by chance {report['chance']:.1%})"
        found[0] = found[0]._replace(worth=worth)
    return found


def _own_metrics(evaluation: Mapping[str, Any]) -> list[tuple[Metric, float]]:
    """The figures of a log entry that are of a `compute_metrics` of one's own."""
    found = {name.removeprefix("eval_"): value for name, value in evaluation.items() if name.startswith("eval_")}
    return [
        (Metric(name, name.replace("_", " "), "", unit="number"), value)
        for name, value in found.items()
        if name not in METRICS and not name.endswith(_OF_EVERY_EVALUATION) and isinstance(value, int | float)
    ]


def usage(
    repo_id: str,
    auto_class: str,
    needs_hf_video: bool = False,
    num_frames: int | None = None,
    question: str = "What happens?",
    has_texts: bool = False,
) -> str:
    """An example that runs: a fenced block of Python that loads the model, given a file `video.mp4`.

    Args:
        repo_id: `user/name`, or a folder.
        auto_class: name of the Auto class that loads the model.
        needs_hf_video: whether the example imports hf_video in place of trusting the code of the repository.
        num_frames: frames of a clip, for a classifier whose configuration does not have them for the pipeline.
        question: what a model that answers is asked.
        has_texts: whether the model compares videos with texts.
    """
    return TEMPLATES.get_template("usage.md.jinja").render(
        **{"repo_id": repo_id, "needs_hf_video": needs_hf_video, "num_frames": num_frames, "question": question},
        # Others use the encoder of a pre-trained model.
        auto_class="AutoModel" if auto_class == "AutoModelForPreTraining" else auto_class,
        pipeline=PIPELINES.get(auto_class),
        has_texts=has_texts,
    )


def is_repository(source: dict[str, Any]) -> bool:
    """Whether a recorded source is a repository on the Hub, not a folder or a file."""
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", source.get("name", "")))


def _tables(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of the tables that the facts fill, by their titles."""
    data = {
        f"{split}: {key}": f"`{value}`" if key in ("sha256", "revision") else value
        for split, description in facts.get("data", {}).items()
        for key, value in description.items()
    }
    known = {name: facts[name] for name in ("seed", "steps", "epochs", "kept_epoch", "hardware") if name in facts}
    if known.get("epochs") == facts.get("recipe", {}).get("num_train_epochs"):
        known.pop("epochs", None)
    recipe, warmup = facts.get("recipe", {}), facts.get("recipe", {}).get("warmup_steps", 0)
    recipe |= {"warmup_steps": f"{warmup:.0%} of all steps"} if 0 < warmup < 1 else {}
    hardware = {"hardware": known.pop("hardware")} if "hardware" in known else {}
    return {
        "Source": {key: value for key, value in (facts.get("source") or {}).items() if key != "how"},
        "Training data": data,
        "Clips": facts.get("clips", {}),
        "Recipe": recipe | known,
        "Hardware and versions": hardware | facts.get("versions", {}),
    }
