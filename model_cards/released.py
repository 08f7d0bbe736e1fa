"""The released original checkpoints, as the facts of the original model zoos list them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FACTS = Path(__file__).with_name("facts")
SOURCES = json.loads((FACTS / "sources.json").read_text(encoding="utf-8"))
VIDEO, IMAGE = "AutoModelForVideoClassification", "AutoModelForImageClassification"
PRE_TRAINING, DETECTOR = "AutoModelForPreTraining", "AutoModelForObjectDetection"
ANSWERS = "AutoModelForImageTextToText"
VIDEO_TEXT = "video_text_dual_encoder"
VIDEOMAMBA_DATA = {
    "k400": "Kinetics-400",
    "K400": "Kinetics-400",
    "ssv2": "Something-Something V2",
    "SthSthV2": "Something-Something V2",
    "breakfast": "Breakfast",
    "coin": "COIN",
    "in1k": "ImageNet-1K",
}
MALMM_DATA = {
    "activitynet_qa": "ActivityNet-QA",
    "msrvtt_qa": "MSRVTT-QA",
    "msvd_qa": "MSVD-QA",
    "msrvtt_caption": "MSRVTT",
    "msvd_caption": "MSVD",
    "youcook2_caption": "YouCook2",
    "breakfast": "Breakfast",
    "coin": "COIN",
    "lvu": "LVU",
}
# What the place in a prompt stands for.
PLACES = {"{}": "what is shown?", "{task}": "genre"}
CLASSIFIER_LIMITS = (
    "It answers with one of its classes whatever the video shows, and its scores are not calibrated.",
    "The checkpoint has no names of classes: predictions read LABEL_0, LABEL_1, ... until `hf-video publish --labels "
    "FILE` names them.",
)
FEATURE_LIMITS = ("It gives features, not classes; fine-tune it for a task of your own.",)


@dataclass
class Result:
    """A figure of the original authors, in percent unless the metric says otherwise."""

    data: str
    metric: str
    value: float
    views: str | None = None


@dataclass
class Released:
    """One released checkpoint.

    Attributes:
        name: the stem of the file, or the last part of the repository's name; also the folder that the conversion
            writes.
        source: key of `SOURCES`.
        family: `model_type` of the converted model.
        auto_class: the Auto class that loads it.
        summary: one sentence.
        command: the shell command that converts it.
        link: address of the original file, or of a repository in Transformers' format; None if the zoo has no link.
        results: figures that the original authors report.
        facts: other statements of the zoo, by name.
        limits: sentences about what the model cannot do.
        question: an example of the prompts of its training.
    """

    name: str
    source: str
    family: str
    auto_class: str
    summary: str
    command: str
    link: str | None = None
    results: list[Result] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    limits: tuple[str, ...] = ()
    question: str = ""

    @property
    def is_dual_encoder(self) -> bool:
        """Whether it compares videos with texts."""
        return self.family == VIDEO_TEXT


def slug(name: str) -> str:
    """A name as the Hub writes identifiers of data sets: lower case, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def read_released() -> list[Released]:
    """All released checkpoints that a converter reads."""
    videovit = _read("videovit")
    return [
        *(card for row in videovit["videomae"]["checkpoints"] for card in _videomae(row)),
        *(_hf_videomae(row, videovit["hf_videomae"]["hub"]) for row in videovit["hf_videomae"]["checkpoints"]),
        *(_videomae_v2(row) for row in videovit["videomae_v2"]["checkpoints"]),
        *(_stmixer(row) for row in videovit["stmixer"]["checkpoints"] if row["backbone"].startswith("ViT")),
        *(card for row in _read("vjepa2")["checkpoints"] for card in _vjepa2(row, _read("vjepa2"))),
        *_videomamba(_read("videomamba")),
        *_videomamba_text(_read("videomamba")),
        *_malmm(_read("memory_bank_qformer")),
    ]


def _videomae(row: dict[str, Any]) -> Iterator[Released]:
    """The fine-tuned and the pre-trained file of a row, if there are links to them."""
    name, data, backbone = slug(row["name"]), row["dataset"], row["backbone"]
    facts = _pick(
        row, "dataset", "backbone", "pretrain_epochs", "frames", "resolution", "tubelet", "extra_data", "note"
    )
    if row["finetune_checkpoint"]:
        yield Released(
            name,
            "videomae",
            "videovit",
            VIDEO,
            f"VideoMAE {backbone}, pre-trained for {row['pretrain_epochs']} epochs and fine-tuned on {data}.",
            f"hf-video convert videomae checkpoint.pth {name}",
            row["finetune_checkpoint"],
            _accuracies(row),
            facts | _pick(row, "finetune_script"),
            (*CLASSIFIER_LIMITS, *_sampling_limits(data)),
        )
    if row["pretrain_checkpoint"]:
        yield Released(
            f"{name}-pretrained",
            "videomae",
            "videovit",
            PRE_TRAINING,
            f"VideoMAE {backbone}, a masked autoencoder pre-trained on {data} for {row['pretrain_epochs']} epochs.",
            f"hf-video convert videomae checkpoint.pth {name}-pretrained",
            row["pretrain_checkpoint"],
            facts=facts | _pick(row, "pretrain_script"),
            limits=FEATURE_LIMITS,
        )


def _hf_videomae(row: dict[str, Any], hub: str) -> Released:
    name, data, backbone, link = row["name"], row["dataset"], row["backbone"], f"{hub}{row['name']}"
    is_pretrained = row["kind"] == "pre-train"
    origin = "a masked autoencoder pre-trained on" if is_pretrained else "fine-tuned on"
    return Released(
        name,
        "hf_videomae",
        "videovit",
        PRE_TRAINING if is_pretrained else VIDEO,
        f"VideoMAE {backbone}, {origin} {data}, from the repository in Transformers' format.",
        f"hf-video convert hf_videomae {link.removeprefix('https://huggingface.co/')} {name}",
        link,
        facts=_pick(row, "dataset", "backbone"),
        limits=FEATURE_LIMITS if is_pretrained else (CLASSIFIER_LIMITS[0], *_sampling_limits(data)),
    )


def _videomae_v2(row: dict[str, Any]) -> Released:
    name, data, backbone = Path(row["file"]).stem, row["dataset"], row["backbone"]
    is_pretrained = row["kind"] == "pre-train"
    link = row["pretrain_checkpoint"] if is_pretrained else row["finetune_checkpoint"]
    results = _accuracies(row)
    results += [
        Result(other, "top-1 accuracy", value, _views(row))
        for other, value in row.get("top1_by_dataset", {}).items()
        if other != data
    ]
    origin = {
        "pre-train": f"a masked autoencoder pre-trained on {data} for {row['pretrain_epochs']} epochs",
        "fine-tune": f"fine-tuned on {data}",
        "distilled": f"distilled on {data} from `{row.get('teacher')}`",
    }
    return Released(
        name,
        "videomae_v2",
        "videovit",
        PRE_TRAINING if is_pretrained else VIDEO,
        f"VideoMAE V2 {backbone}, {origin[row['kind']]}.",
        f"hf-video convert videomae {row['file']} {name}",
        link if link and link.startswith("http") else None,
        results,
        _pick(
            row,
            *("dataset", "backbone", "pretrain_data", "post_pretrain_data", "pretrain_epochs", "teacher"),
            *("frames", "resolution", "patch", "tubelet", "num_classes", "parameters", "note"),
        ),
        FEATURE_LIMITS if is_pretrained else (*CLASSIFIER_LIMITS, *_sampling_limits(data)),
    )


def _stmixer(row: dict[str, Any]) -> Released:
    name = f"stmixer-{slug(row['backbone'])}"
    command = f"hf-video convert stmixer checkpoint.pth {name} --task action-detection"
    if row["action_weight"] != 24:  # no tensor shows it
        original = json.dumps({"STM": {"ACTION_WEIGHT": row["action_weight"]}})
        command = f"echo '{original}' > original.json\n{command} --original-config original.json"
    return Released(
        name,
        "stmixer",
        "stmixer",
        DETECTOR,
        f"STMixer on {row['backbone']}, which finds people and their actions at key frames, trained on AVA v2.2.",
        command,
        row["model"],
        facts=_pick(row, "backbone", "config", "frames", "sampling_rate", "action_weight")
        | {"dataset": "AVA v2.2", "started from": f"{row['start_weights']['dataset']} weights"},
        limits=(
            "Its authors state no mean average precision for this file, and it was not measured here.",
            "The checkpoint has no names of actions: they read LABEL_0, LABEL_1, ... unless the conversion gets "
            "`--label-map FILE.pbtxt`, AVA's file of them.",
            "Its processor takes the frames of clips, not files. Without `--task` the command converts the backbone.",
        ),
    )


def _vjepa2(row: dict[str, Any], content: dict[str, Any]) -> Iterator[Released]:
    """The authors' file, and the folder of Transformers' port if there is one. A probe is a file of its own."""
    name, probe, data = row["name"], row.get("probe"), row.get("dataset")
    what = f"an attentive classifier of {data} on its frozen encoder" if probe else "an encoder without labels"
    words, rate = "", row.get("frame_sampling_rate")
    changes = {
        "image_size": (row["resolution"], 384 if "2.1" in row["model"] else 256),
        "num_frames": (row["frames"], 64),
    }
    if probe:
        words += f" --probe {probe}"
        changes["pooler_num_clips"] = row["clips"], 1
    words += "".join(f" --set {field}={value}" for field, (value, usual) in changes.items() if value != usual)
    command = f"hf-video convert vjepa2 {row['file']} {name}{words}"
    if layers := row.get("out_layers"):
        command = (
            f"echo '{json.dumps({'out_layers': layers})}' > original.json\n{command} --original-config original.json"
        )
    protocol = (
        f"The figure was measured with frame_sampling_rate={rate}, num_clips={row.get('clips')} and num_crops="
        f"{row.get('crops')}, with which the processor is to be loaded. The pooler joins the clips.",
    )
    facts = _pick(row, *("dataset", "model", "backbone", "frames", "resolution", "num_classes", "params_computed"))
    common = {"family": "videovit", "auto_class": VIDEO if probe else "AutoModel"}
    yield Released(
        name,
        "vjepa2",
        **common,
        summary=f"{row['model']} {row['backbone']}, {what}.",
        command=command,
        link=content["files"] + row["file"],
        results=_accuracies(row),
        facts=facts | ({"file of the probe": content["probes"] + probe} if probe else {}),
        limits=(*CLASSIFIER_LIMITS, *protocol) if probe else FEATURE_LIMITS,
    )
    if row["hub"] is not None:
        yield Released(
            row["hub"],
            "hf_vjepa2",
            **common,
            summary=f"{row['model']} {row['backbone']}, {what}, from the folder in Transformers' format.",
            command=f"hf-video convert vjepa2 facebook/{row['hub']} {row['hub']}",
            link=content["hub"] + row["hub"],
            facts=facts,
            limits=(CLASSIFIER_LIMITS[0],) if probe else FEATURE_LIMITS,
        )


def _videomamba(content: dict[str, Any]) -> Iterator[Released]:
    """One card for each file. Two rows of the zoo link to the file of another row; their figures are not its own."""
    seen = set()
    (doubt,) = (note for note in content["notes"] if note.startswith("ssv2 rows"))
    tasks = {
        "video classification": (VIDEO, "fine-tuned on"),
        "image classification": (IMAGE, "trained on"),
        "masked pretraining": (PRE_TRAINING, "pre-trained by masked feature alignment on"),
    }
    for row in content["models"]:
        if row["file"] in seen or row["task"] not in tasks:
            continue
        seen.add(row["file"])
        name, (auto_class, verb) = Path(row["file"]).stem, tasks[row["task"]]
        data = VIDEOMAMBA_DATA.get(row["dataset"], row.get("dataset_parts", row["dataset"]))
        yield Released(
            name,
            "videomamba",
            "videomamba",
            auto_class,
            f"{row['model']}, {verb} {data}{_clip(row)}.",
            f"hf-video convert videomamba {row['file']} {name} --variant {name}",
            # The zoo links this row to the file of another one.
            None if row.get("file_other_link") else content["hub"] + row["file"],
            results=_accuracies(row | {"dataset": data}),
            facts={"dataset": data, "original file": row["file"]}
            | _pick(row, *("model", "pretraining", "epochs", "num_frames", "resolution", "num_classes"))
            | _pick(row, *("params_computed", "params_computed_with_decoder", "params_reported"))
            | _pick(row, *("flops_reported", "script"))
            | ({"note": doubt} if row["dataset"] == "ssv2" else {}),
            limits=CLASSIFIER_LIMITS if auto_class in (VIDEO, IMAGE) else FEATURE_LIMITS,
        )


def _videomamba_text(content: dict[str, Any]) -> Iterator[Released]:
    """The multimodal models: video encoder, text encoder and fusion encoder."""
    titles = {"text_to_video": "text-to-video", "video_to_text": "video-to-text"}
    for row in content["models"]:
        if row["task"] != "multimodal pretraining":
            continue
        name = Path(row["file"]).stem
        yield Released(
            name,
            "videomamba_text",
            VIDEO_TEXT,
            "AutoModel",
            f"{row['model']} with text: search among videos, pre-trained on {row['dataset_parts']}{_clip(row)}.",
            f"hf-video convert videomamba_text {row['file']} {name} --tokenizer google-bert/bert-base-uncased",
            content["hub"] + row["file"],
            [
                Result(data, f"{title} R@{k}", value, "zero-shot, 1 clip")
                for data, figures in row["zero_shot_retrieval"].items()
                for direction, title in titles.items()
                for k, value in zip((1, 5, 10), figures[direction], strict=True)
            ],
            {"dataset": row["dataset_parts"], "original file": row["file"]}
            | _pick(row, "model", "num_frames", "resolution", "params_computed", "script")
            | {
                "source of the results": "videomamba/video_mm/MODEL_ZOO.md, which does not say whether pairs were "
                "ranked again; the original code does so by default"
            },
            (
                "Its texts are English, in lower case and without most punctuation; by default it reads their first "
                "32 tokens.",
                "The results are of models in bfloat16; they were not measured again after the conversion.",
            ),
        )


def _malmm(content: dict[str, Any]) -> Iterator[Released]:
    reported = content["reported_results"]["confirmed_on_paperswithcode_page"]
    common = content["common"]
    for key, row in content["datasets"].items():
        name, data = f"malmm-{key.replace('_', '-')}", MALMM_DATA[key]
        figures = reported.get(key, {})
        results = [Result(data, metric, value) for metric, value in figures.items()]
        if f"{key}.top1" in reported:
            results.append(Result(data, "top-1 accuracy", reported[f"{key}.top1"]))
        sizes = {"memory_bank_length": row["memory_bank_length"], "num_frames": row["num_frames"]}
        command = (
            f"echo '{json.dumps({'model_kwargs': sizes})}' > original.json\n"
            f"hf-video convert malmm checkpoint.pth {name} --original-config original.json "
            "--vision Salesforce/instructblip-vicuna-7b --llm lmsys/vicuna-7b-v1.1 "
            "--qformer-tokenizer google-bert/bert-base-uncased"
        )
        question = row["prompt"]
        for place, example in PLACES.items():
            question = question.replace(place, example)
        yield Released(
            name,
            "malmm",
            "memory_bank_qformer",
            ANSWERS,
            f"MA-LMM, a Q-Former with memory banks before Vicuna-7B, fine-tuned for {row['task']} on {data}.",
            command,
            SOURCES["malmm"]["weights"],
            results,
            {"dataset": data}
            | _pick(row, "task", "num_frames", "memory_bank_length", "prompt", "metric", "init_lr", "epochs", "note")
            | {"vision tower": common["vit"], "language model": common["llm"]},
            ("The vision tower and the language model are downloads of their own, with licences of their own.",),
            question,
        )


def _accuracies(row: dict[str, Any]) -> list[Result]:
    titles = {"top1": "top-1 accuracy", "top5": "top-5 accuracy"}
    return [
        Result(row["dataset"], title, row[key], _views(row))
        for key, title in titles.items()
        if row.get(key) is not None
    ]


def _views(row: dict[str, Any]) -> str | None:
    clips, crops = row.get("test_clips", row.get("clips")), row.get("test_crops", row.get("crops"))
    return f"{clips} clips x {crops} crops" if clips else None


def _clip(row: dict[str, Any]) -> str:
    frames = f"{row['num_frames']} frames of " if row.get("num_frames") else ""
    return f", {frames}{row['resolution']} pixels"


def _sampling_limits(data: str) -> tuple[str, ...]:
    if data != "Something-Something V2":
        return ()
    return (
        "The figures were measured on clips spread over the whole video: load the processor with "
        '`sampling_strategy="uniform"`, since the conversion cannot tell the data from the weights.',
    )


def _pick(row: dict[str, Any], *names: str) -> dict[str, Any]:
    """The named facts that the zoo states."""
    return {name.replace("_", " "): row[name] for name in names if row.get(name) not in (None, "")}


def _read(family: str) -> dict[str, Any]:
    return json.loads((FACTS / f"{family}.json").read_text(encoding="utf-8"))
