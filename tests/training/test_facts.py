"""The facts that a run leaves behind."""

import json
from pathlib import Path

import pytest

from hf_video.cli.main import main
from hf_video.data import ClipTask, VideoDataset, load_video_dataset
from hf_video.training import VideoTrainer, VideoTrainingArguments
from hf_video.training.facts import describe_data, describe_source
from tests.hub.conftest import make_model


@pytest.fixture
def make_trainer(digits, tmp_path):
    """Makes trainers of one run in one folder."""

    def make(model=None, **options):
        data = load_video_dataset(digits)
        default_model, processor = make_model("VideoViT", data["train"].features["label"].names)
        return VideoTrainer(
            model or default_model,
            VideoTrainingArguments(str(tmp_path / "model"), use_cpu=True, disable_tqdm=True, **options),
            train_dataset=VideoDataset(data["train"], ClipTask(processor), training=True),
            eval_dataset=VideoDataset(data["test"], ClipTask(processor), training=False),
            processing_class=processor,
        )

    return make


def read_facts(trainer):
    with open(f"{trainer.args.output_dir}/training_facts.json") as file:
        return json.load(file)


def test_a_run_records_its_facts(make_trainer):
    trainer = make_trainer(num_train_epochs=2, seed=7)
    trainer.train()
    facts = read_facts(trainer)
    assert (facts["seed"], facts["epochs"], facts["steps"], facts["source"]) == (7, 2, 6, None)
    assert facts["clips"]["num_frames"] == 4 and facts["views"] == {"num_clips": 1, "num_crops": 1}
    assert {split: entry["num_videos"] for split, entry in facts["data"].items()} == {"train": 24, "validation": 8}
    assert facts["validation"]["eval_top1_accuracy"] == trainer.state.best_metric
    assert trainer.args.output_dir not in json.dumps(facts)


def test_a_resumed_run_keeps_its_source(make_trainer):
    first = make_trainer(num_train_epochs=1)
    first.model.name_or_path = "org/base"
    first.train()
    assert read_facts(first)["source"] == {"name": "org/base"}
    checkpoint = f"{first.args.output_dir}/checkpoint-3"
    second = make_trainer(type(first.model).from_pretrained(checkpoint), num_train_epochs=2)
    second.train(resume_from_checkpoint=checkpoint)
    assert (read_facts(second)["source"], read_facts(second)["epochs"]) == ({"name": "org/base"}, 2)


def test_a_folder_is_named_without_its_path_and_with_the_licence_of_its_card(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    assert describe_source(str(folder)) == {"name": "base"}
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    assert describe_source(str(folder)) == {"name": "base", "license": "mit"}
    assert describe_source("") is None


def test_the_hash_of_the_data_tells_other_files_and_labels_but_not_the_place(digits, tmp_path):
    data = load_video_dataset(digits)["train"]

    class Rows(list):
        rows = data

    def digest(rows):
        Rows.rows = rows
        return describe_data(Rows(rows))["sha256"]

    original = digest(data)
    assert digest(data.select(range(len(data) - 1))) != original
    relabelled = data.map(lambda row: {"label": (row["label"] + 1) % 8})
    assert digest(relabelled) != original
    assert digest(data.select(reversed(range(len(data))))) == original
    moved = data.map(lambda row: {"video": str(_copy(row["video"], tmp_path))})
    assert digest(moved) == original


def _copy(video, folder):
    target = folder.joinpath(*Path(video).parts[-2:])
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(Path(video).read_bytes())
    return target


def test_what_a_trainer_held_out_is_found_again_among_its_data(make_trainer, digits, capsys):
    """Files of a training are told by their paths, whether or not they choose the checkpoint."""
    trainer = make_trainer(max_steps=1, load_best_model_at_end=False)
    trainer.train()
    trainer.save_model()
    together = Path(trainer.args.output_dir).with_name("all.csv")
    rows = [f"{video},{video.parent.name}" for video in sorted(digits.rglob("*.mp4"))]
    together.write_text("\n".join(["path,label", *rows]))
    capsys.readouterr()
    assert main(["evaluate", str(together), "--model", trainer.args.output_dir, "--device", "cpu", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["num_videos"], result["part_of_training"], result["known_videos"]) == (8, "held out", {"train": 0})
