"""Writes the model card of a trained model from the facts of its training and from its files."""

import html
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, ModelCard, ModelCardData, eval_result_entries_to_yaml
from transformers.utils import VIDEO_PROCESSOR_NAME

from hf_video.auto import CLASSES
from hf_video.io import read_own_json, sha256_of
from hf_video.metrics import Metric, measured_in, tell_views
from hf_video.settings import few

from .folder_checks import CARD, SELF_TEST
from .self_test import RECORD

TEMPLATE = Path(__file__).with_name("model_card.md")
EVALUATION_RESULTS = ".eval_results/hf_video.yaml"
FEATURES = "feature-extraction"
DETECTOR = "AutoModelForObjectDetection"
# Transformers has no class for frames of videos, and the Hub no task. With a row in `PIPELINES` the Hub's page would
# show a pipeline, which runs the weights as a classifier of clips.
OF_FRAMES = "AutoModelForTokenClassification"
PIPELINES = {
    "AutoModelForVideoClassification": "video-classification",
    "AutoModelForImageClassification": "image-classification",
    "AutoModelForImageTextToText": "video-text-to-text",
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


def write_card(folder: Path, repo_id: str, facts: dict[str, Any]) -> None:
    """Writes the card of the model in a folder, which is complete but for it.

    Args:
        folder: the card describes its configuration and weights.
        repo_id: `user/name`, the repository that the example loads.
        facts: facts from `read_facts`. The card leaves out what they do not have.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture, name = config["architectures"][0], repo_id.split("/")[-1]
    auto_class = auto_class_of(architecture)
    measured = results(facts, auto_class)
    card = ModelCard.from_template(
        metadata(name, config["model_type"], auto_class, facts, measured),
        template_path=str(TEMPLATE),
        name=name,
        summary=_summary(architecture, config, facts),
        usage=usage(
            repo_id,
            auto_class,
            num_frames=_frames_to_name(folder, config),
            has_texts=config["model_type"] == "video_text_dual_encoder",
        ),
        self_test=_describe_self_test(folder, repo_id, auto_class),
        results=measured,
        counted="key frames" if auto_class == DETECTOR else "videos",
        sections=_sections(folder, facts),
        pictures={path.stem.replace("_", " "): f"report/{path.name}" for path in sorted(folder.glob("report/*.png"))},
        limits=_limits(config, facts, auto_class),
    )
    card.save(folder / CARD)


def write_evaluation_results(folder: Path, facts: dict[str, Any]) -> None:
    """Writes the top-1 accuracy in the Hub's `.eval_results` format, if the data set is on the Hub."""
    data = facts.get("data", {}).get("validation", {})
    if "hub_id" not in data:
        return
    auto_class = auto_class_of(json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"][0])
    top1 = next((result for result in results(facts, auto_class) if result.metric.name == "top1_accuracy"), None)
    if top1 is None:
        return
    value, notes = round(100 * top1.value, 2), f"{top1.split} split, {top1.views}"
    entry = EvalResultEntry(data["hub_id"], "default", value, dataset_revision=data.get("revision"), notes=notes)
    path = folder / EVALUATION_RESULTS
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(eval_result_entries_to_yaml([entry]), sort_keys=False), encoding="utf-8")


def auto_class_of(architecture: str) -> str:
    """The Auto class that loads a model class of this package or of Transformers."""
    ours = {row.class_name: row.auto_class for row in CLASSES}
    heads = (f"AutoModelFor{match[1]}" for match in [re.search(r"For(\w+)$", architecture)] if match)
    return ours.get(architecture) or next(heads, "AutoModel")


def metadata(
    name: str, model_type: str, auto_class: str, facts: dict[str, Any], measured: list[Result]
) -> ModelCardData:
    """The metadata of a card, with the results as `model-index`."""
    pipeline, source = PIPELINES.get(auto_class), facts.get("source") or {}
    return ModelCardData(
        library_name="transformers",
        pipeline_tag=pipeline,
        license=source.get("license"),
        base_model=source["name"] if is_repository(source) else None,
        datasets=sorted({data["hub_id"] for data in facts.get("data", {}).values() if data.get("hub_id")}) or None,
        metrics=list(dict.fromkeys(result.metric.hub_type or result.metric.name for result in measured)) or None,
        tags=["hf_video", "video", model_type],
        model_name=name,
        eval_results=[
            EvalResult(
                task_type=pipeline or "video-classification",
                dataset_type=slug(result.data),
                dataset_name=result.data,
                dataset_split=result.split,
                metric_type=result.metric.hub_type or result.metric.name,
                metric_name=f"{result.metric.title} ({result.views})",
                metric_value=round(result.value, 4),
            )
            for result in measured
        ]
        or None,
    )


def results(facts: dict[str, Any], auto_class: str) -> list[Result]:
    """The metrics that the facts of a training state: on the report's split, and on the validation split.

    A model of features has none: the facts beside it are those of a classifier.
    """
    if PIPELINES.get(auto_class) == FEATURES:
        return []
    data = facts.get("data", {})
    name = data.get("train", {}).get("name", "own videos")
    views = facts.get("views", {})
    protocol = tell_views(views.get("num_clips", 1), views.get("num_crops", 1))
    counted = "num_videos"
    if auto_class == DETECTOR:
        protocol, counted = "1 clip a key frame", "num_key_frames"
    elif auto_class == OF_FRAMES:
        protocol = "all frames"
    report = facts.get("report", {})
    measured = [(report.get("split"), report.get(counted), measured_in(report))]
    if report.get("split") != "validation":
        number = data.get("validation", {}).get(counted, 0)
        measured.append(("validation", number, measured_in(facts.get("validation", {}), "eval_")))
    found = [Result(name, split, number, protocol, *row) for split, number, rows in measured for row in rows]
    if "chance" in report and found and found[0].split == report["split"]:
        low, high = report.get("top1_interval") or report["interval"]
        worth = f" (95% interval {low:.1%} to {high:.1%}, by chance {report['chance']:.1%})"
        found[0] = found[0]._replace(worth=worth)
    return found


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
    requirement = "import hf_video  # pip install git+https://github.com/hf-video/hf-video\n" if needs_hf_video else ""
    trust = "" if needs_hf_video else ", trust_remote_code=True"
    frames = "" if num_frames is None else f", num_frames={num_frames}"
    if auto_class in ("AutoModelForVideoClassification", "AutoModelForImageClassification"):
        imports = "pipeline"
        file = "image.png" if auto_class == "AutoModelForImageClassification" else "video.mp4"
        code = f"""\
classifier = pipeline("{PIPELINES[auto_class]}", model=model_id{trust})
print(classifier("{file}"{frames}))"""
    elif auto_class == "AutoModelForImageTextToText":
        imports = f"{auto_class}, AutoProcessor"
        code = f"""\
processor = AutoProcessor.from_pretrained(model_id{trust})
model = {auto_class}.from_pretrained(model_id{trust})
inputs = processor(videos="video.mp4", text="{question}", return_tensors="pt")
print(processor.batch_decode(model.generate(**inputs), skip_special_tokens=True))"""
    elif auto_class == DETECTOR:
        imports = f"{auto_class}, AutoVideoProcessor"
        if needs_hf_video:
            requirement = requirement.replace("import hf_video", "from hf_video.data import read_key_frame_clip")
            read = 'clip = read_key_frame_clip("video.mp4", second, processor)'
        else:
            imports += "\nfrom transformers.video_utils import load_video"
            read = """\
frames, metadata = load_video("video.mp4")
places = (processor.key_frame_times(second) * metadata.fps).round().clip(0, len(frames) - 1)
clip = frames[places.astype(int)]"""
        code = f"""\
processor = AutoVideoProcessor.from_pretrained(model_id{trust})
model = {auto_class}.from_pretrained(model_id{trust})
second = 1.0  # of the key frame
{read}
inputs = processor([clip], return_tensors="pt")
(persons,) = processor.post_process_action_detection(
    model(**inputs), original_sizes=inputs["original_sizes"], target_sizes=[clip.shape[1:3]]
)
for box, scores in zip(persons["boxes"], persons["action_scores"]):
    print(box.round().int().tolist(), model.config.id2label[scores.argmax().item()])"""
    elif auto_class == OF_FRAMES:
        imports = f"{auto_class}, AutoVideoProcessor"
        code = f"""\
processor = AutoVideoProcessor.from_pretrained(model_id{trust})
model = {auto_class}.from_pretrained(model_id{trust})
inputs = processor("video.mp4", return_tensors="pt")  # of one clip; `hf-video timeline` sees whole videos
logits = model(**inputs).logits[0, model.config.frame_delay :]
for number, scores in enumerate(logits):
    print(f"frame {{number}}: {{model.config.id2label[scores.argmax().item()]}}")"""
    elif has_texts:
        imports = f"{auto_class}, AutoProcessor"
        code = f"""\
processor = AutoProcessor.from_pretrained(model_id{trust})
model = {auto_class}.from_pretrained(model_id{trust})
inputs = processor("video.mp4", ["a dog is running", "somebody is cooking"], return_tensors="pt")
print(model(**inputs).similarity)"""
    else:
        # Others use the encoder of a pre-trained model.
        auto_class = "AutoModel" if auto_class == "AutoModelForPreTraining" else auto_class
        imports = f"{auto_class}, AutoVideoProcessor"
        code = f"""\
processor = AutoVideoProcessor.from_pretrained(model_id{trust})
model = {auto_class}.from_pretrained(model_id{trust})
outputs = model(**processor("video.mp4", return_tensors="pt"))
print(outputs.keys())"""
    return f'```python\n{requirement}from transformers import {imports}\n\nmodel_id = "{repo_id}"\n{code}\n```'


def self_test_code(repo_id: str, auto_class: str) -> str:
    """An example that runs: a fenced block of Python that compares a classifier of videos or of their frames with its
    self-test."""
    return f"""\
```python
import json
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from transformers import {auto_class}, AutoVideoProcessor

folder = Path(snapshot_download("{repo_id}"))
model = {auto_class}.from_pretrained(folder, trust_remote_code=True, dtype="float32").eval()
processor = AutoVideoProcessor.from_pretrained(folder, trust_remote_code=True)
for video, expected in json.loads((folder / "{RECORD}").read_text())["videos"].items():
    logits = model(**processor(str(folder / "{SELF_TEST}" / video), return_tensors="pt")).logits.flatten()
    difference = (logits - torch.tensor(expected["logits"]["values"])).abs().max() / logits.abs().max()
    print(f"{{video}}: largest difference {{difference:.1e}} of the largest logit")
```"""


def is_repository(source: dict[str, Any]) -> bool:
    """Whether a recorded source is a repository on the Hub, not a folder or a file."""
    return bool(re.fullmatch(r"[\w.-]+/[\w.-]+", source.get("name", "")))


def slug(name: str) -> str:
    """A name as the Hub writes identifiers of data sets: lower case, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _frames_to_name(folder: Path, config: dict[str, Any]) -> int | None:
    processor = folder / VIDEO_PROCESSOR_NAME
    if "num_frames" in config or not processor.is_file():
        return None
    return json.loads(processor.read_text(encoding="utf-8")).get("num_frames")


def _describe_self_test(folder: Path, repo_id: str, auto_class: str) -> str | None:
    test, processor = (read_own_json(folder / name) for name in (RECORD, VIDEO_PROCESSOR_NAME))
    if test is None:
        return None
    command = f"`hf-video verify {repo_id}`"
    if test["untested"]:
        return f"{command} compares classes and processing. The model is not run: {test['untested']}."
    text = (
        f"`{SELF_TEST}/` has two small videos, and what they become. {command} says whether it is the same elsewhere."
    )
    is_ours = processor.get("video_processor_type") == "VideoClipProcessor"
    if not is_ours or any("logits" not in measured for measured in test["videos"].values()):
        return text
    exact, resized = test["bounds"]["float32"], test["bounds"]["float16"]
    allowed = f"{exact:.0e}, or by {resized} where other instructions resize frames otherwise"
    code = self_test_code(repo_id, auto_class)
    return f"{text} Without hf_video this compares the logits, which may differ by {allowed}:\n\n{code}"


def _summary(architecture: str, config: dict[str, Any], facts: dict[str, Any]) -> str:
    source = facts.get("source")
    origin = f", {source.get('how', 'fine-tuned from')} `{source['name']}`" if source else ""
    sentences = [f"A `{architecture}` of [hf_video](https://github.com/hf-video/hf-video){origin}."]
    auto_class = auto_class_of(architecture)
    is_detector = auto_class == DETECTOR
    if ("Classification" in architecture or is_detector) and config.get("id2label"):
        names = list(config["id2label"].values())
        listed = few(map(_cell, names), 8)
        what = f"estimates {len(names)} values" if _is_regression(config) else f"knows {len(names)} classes"
        if is_detector:
            what = f"finds people, and knows {len(names)} actions"
        if auto_class == OF_FRAMES:
            number = "any" if config.get("problem_type") == "multi_label_classification" else "one"
            what = f"gives every frame {number} of {len(names)} classes"
        sentences.append(f"It {what}: {listed}.")
    if auto_class == OF_FRAMES:
        if background := config.get("background_label"):
            sentences.append(f"Frames of `{_cell(background)}` are no segment.")
        if delay := config.get("frame_delay"):
            interval = facts.get("clips", {}).get("frame_interval")
            seconds = f" ({delay * config['tubelet_size'] * interval:.2g} s)" if interval else ""
            sentences.append(f"The scores of a frame come {delay} token frames{seconds} later.")
    if method := (config.get("quantization_config") or {}).get("quant_method"):
        sentences.append(f"Its weights are quantised, so that it only loads where {method} is installed.")
    return " ".join(sentences)


def _sections(folder: Path, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Titles and rows of the tables that the facts fill."""
    data = {
        f"{split}: {key.replace('_', ' ')}": f"`{value}`" if key in ("sha256", "revision") else _cell(value)
        for split, description in facts.get("data", {}).items()
        for key, value in description.items()
    }
    training = {name.replace("_", " "): _cell(value) for name, value in facts.get("recipe", {}).items()}
    training |= {name: facts[name] for name in ("seed", "steps", "epochs") if name in facts}
    environment = {"hardware": facts["hardware"]} if "hardware" in facts else {}
    source = {key: _cell(value) for key, value in (facts.get("source") or {}).items() if key != "how"}
    tables = {
        "Source": source,
        "Training data": data,
        "Clips": {name.replace("_", " "): _cell(value) for name, value in facts.get("clips", {}).items()},
        "Recipe": training,
        "Hardware and versions": environment | facts.get("versions", {}),
        "Weights (SHA-256)": {path.name: f"`{sha256_of(path)}`" for path in sorted(folder.glob("*.safetensors"))},
    }
    return [{"title": title, "rows": rows} for title, rows in tables.items() if rows]


def _limits(config: dict[str, Any], facts: dict[str, Any], auto_class: str) -> list[str]:
    limits = []
    takes_images = auto_class == "AutoModelForImageClassification"
    if "Classification" in auto_class:
        shown = "image" if takes_images else "video"
        answer = "gives values" if _is_regression(config) else "answers with one of its classes"
        also = "" if _is_regression(config) else ", and its scores are not calibrated"
        limits.append(f"It {answer} whatever the {shown} shows{also}.")
    if auto_class == DETECTOR:
        limits.append("It finds people alone, at the key frame of a clip, and its scores are not calibrated.")
        limits.append("Its processor takes the frames of clips, not files.")
    if "Classification" in auto_class or auto_class == DETECTOR:
        limits.append("It was measured on the data above alone; other cameras, scenes and people may differ.")
    has_clips = auto_class != OF_FRAMES or config.get("bidirectional", True)
    if "num_frames" in config and not takes_images and has_clips:
        limits.append(f"It sees {config['num_frames']} frames of a video at a time.")
    if "recipe" not in facts:
        limits.append("How it was trained was not recorded.")
    if not takes_images and auto_class != DETECTOR:
        limits.append(
            "Without hf_video its processor decodes files with PyAV or torchcodec alone (`pip install av`): it reads "
            "no addresses, and does not tell of all damage in a file."
        )
    return limits


def _is_regression(config: dict[str, Any]) -> bool:
    """Whether the model estimates values: by its `problem_type`, or if that is missing by its single output."""
    problem_type = config.get("problem_type")
    return problem_type == "regression" or (problem_type is None and len(config.get("id2label") or ()) == 1)


def _cell(value: Any) -> str:
    """A value as text for a table or a sentence. Names that users chose must not become markup."""
    text = ", ".join(f"{key} {part}" for key, part in value.items()) if isinstance(value, dict) else str(value)
    return html.escape(text, quote=False).replace("|", "\\|")
