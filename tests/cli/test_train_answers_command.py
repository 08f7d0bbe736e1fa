"""`hf-video train-answers`, and the recipes of MA-LMM's data sets: every setting is where it takes effect."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

from hf_video.training import TrainAnswersSettings, train
from tests.cli.flags import check_settings_land, flags_of, read, settings_of
from tests.testing.answering import tiny_pair
from tests.testing.videos import encode_video, make_frames

RECIPES = sorted((Path(__file__).parents[2] / "recipes" / "malmm").glob("*.yaml"))
# On a CPU, with few videos.
CHANGED = {"batch_size": 2, "fp16": False, "num_frames": 3, "num_beams": 5, "max_length": 16}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    for each in tiny_pair():
        each.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders of questions and of captions, with a validation and a test split."""
    folder = tmp_path_factory.mktemp("data")
    for number in range(4):
        encode_video(folder / f"{number}.mp4", make_frames(8))
    for kind, row in {"questions": {"question": "which digit"}, "captions": {}}.items():
        (folder / kind).mkdir()
        for split, numbers in {"train": (0, 1), "validation": (2,), "test": (3,)}.items():
            rows = [{"video": str(folder / f"{number}.mp4"), "answer": "one two", **row} for number in numbers]
            (folder / kind / f"{split}.json").write_text(json.dumps(rows))
    return folder


# All recipes have the same settings.
@pytest.mark.parametrize("recipe", [path for path in RECIPES if path.stem in ("lvu", "msvd_qa")], ids=lambda p: p.stem)
def test_a_recipe_trains_and_every_setting_lands(recipe, model, data, tmp_path):
    settings = settings_of(recipe) | CHANGED
    assert settings.pop("kept_frames_gib") == 0
    folder = data / ("questions" if "{}" in settings["prompt"] else "captions")
    words = [str(folder), f"--model={model}", f"--output-dir={tmp_path / 'out'}", "--max-steps=1", "--device=cpu"]
    words += flags_of(CHANGED)
    trainer, metrics = train(read(["train-answers", "--recipe", str(recipe), *words]))
    assert trainer.state.global_step == 1 and metrics["split"] == "test" and metrics["num_videos"] == 1
    generated = ("max_new_tokens", "min_new_tokens", "num_beams", "length_penalty", "repetition_penalty")
    assert [getattr(trainer.model.generation_config, name) for name in generated] == [
        settings[name] for name in generated
    ]
    assert trainer.train_dataset.task.prompt == settings["prompt"]
    collate = trainer.data_collator.__self__
    assert (collate.max_length, collate.max_target_length) == (settings["max_length"], settings["max_target_length"])
    # A configuration for any number of frames has None.
    num_frames = settings.pop("num_frames")
    check_settings_land(trainer, settings, TrainAnswersSettings)
    assert trainer.optimizer.param_groups[0]["betas"] == (settings["adam_beta1"], settings["adam_beta2"])
    assert trainer.optimizer.param_groups[0]["weight_decay"] == settings["weight_decay"]
    answers = json.loads((tmp_path / "out" / "answers.json").read_text())
    assert len(answers["videos"][0]["answers"]) == trainer.args.num_return_sequences
    saved = AutoModelForImageTextToText.from_pretrained(tmp_path / "out")
    assert saved.generation_config.max_new_tokens == settings["max_new_tokens"]
    assert saved.config.memory_bank_length == settings["memory_bank_length"]
    assert AutoProcessor.from_pretrained(tmp_path / "out").video_processor.num_frames == num_frames


def test_only_first_words_are_compared_where_the_recipe_says_so(model, data, tmp_path, monkeypatch):
    from hf_video.training.answers import AnswerTrainer

    monkeypatch.setattr(AnswerTrainer, "predict_answers", lambda self, dataset: ([["one two"]], ["one"]))
    words = [str(data / "questions"), f"--model={model}", "--max-steps=1", "--device=cpu", "--num-beams=1"]
    _, metrics = train(read(["train-answers", *words, f"--output-dir={tmp_path / 'a'}", "--first-words"]))
    assert metrics["top1"] == 1
    _, metrics = train(read(["train-answers", *words, f"--output-dir={tmp_path / 'b'}"]))
    assert metrics["top1"] == 0


def test_a_run_with_adapters_is_resumed_and_ends_as_one_that_was_not(model, data, tmp_path, says):
    words = ["train-answers", str(data / "questions"), f"--model={model}", "--device=cpu", "--num-beams=1"]
    words += ["--eval-strategy=no", "--no-load-best-model-at-end", "--lora-rank=2", "--batch-size=1"]
    words += ["--save-strategy=steps", "--save-steps=1", "--learning-rate=0.01", "--max-new-tokens=3"]
    assert "try it   hf-video watch" in says(*words, "--max-steps=4", f"--output-dir={tmp_path / 'whole'}")
    parts = f"--output-dir={tmp_path / 'parts'}"
    trainer, _ = train(read([*words, "--max-steps=4", "--save-total-limit=4", parts]))
    for step in (3, 4):
        (tmp_path / "parts" / f"checkpoint-{step}" / "trainer_state.json").unlink()
    resumed, _ = train(read([*words, "--max-steps=4", parts, "--resume"]))
    assert resumed.state.global_step == 4
    with pytest.raises(ValueError, match=r"--lora-rank 4 differs from the run being resumed \(2\)"):
        train(read([*words[:-4], "--lora-rank=4", "--max-steps=4", parts, "--resume"]))
    first, second = (
        AutoModelForImageTextToText.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "parts")
    )
    assert first.keys() == second.keys() and all((first[name] == second[name]).all() for name in first)


def test_without_memory_every_frame_has_its_places(model, data, tmp_path):
    words = ["train-answers", str(data / "questions"), f"--model={model}", "--device=cpu", "--num-beams=1"]
    words += ["--max-steps=1", "--memory-bank-length=0", "--num-frames=3", f"--output-dir={tmp_path / 'out'}"]
    trainer, metrics = train(read(words))
    num_queries = trainer.model.config.num_query_tokens
    assert metrics["num_videos"] == 1
    assert AutoProcessor.from_pretrained(tmp_path / "out").num_query_tokens == 3 * num_queries


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", "what is shown"], "has no place {} for them"),
        (["--num-return-sequences=9"], "`num_return_sequences` (9) has to be smaller or equal to `num_beams` (5)"),
    ],
)
def test_wrong_settings_are_named_and_nothing_is_written(words, message, model, data, tmp_path, fails):
    out = tmp_path / "out"
    common = [data / "questions", f"--model={model}", f"--output-dir={out}", "--device=cpu"]
    assert message in fails("train-answers", *common, *words)
    assert not out.exists()


def test_what_is_missing_or_in_the_way_is_named(model, data, tmp_path, fails):
    assert "The model to fine-tune is missing" in fails("train-answers", data, "--output-dir=o")
    (tmp_path / "mine").write_text("")
    words = (data / "questions", f"--model={model}", f"--output-dir={tmp_path}", "--device=cpu")
    assert "is not empty (mine)" in fails("train-answers", *words)
    assert "There is nothing to resume" in fails("train-answers", *words, "--resume")
