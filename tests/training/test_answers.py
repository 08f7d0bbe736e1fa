"""Fine-tuning to answer: what is trained, adapters, generated answers, and their score."""

import json

import pytest
import torch
from peft import PeftModel
from transformers import AutoModel, AutoModelForImageTextToText

from hf_video.data import TextTask, VideoDataset
from hf_video.data.video_texts import load_video_texts
from hf_video.training.answers import (
    AnswerTrainer,
    AnswerTrainingArguments,
    choose_trained,
    exact_match,
)
from tests.testing.answering import tiny_pair
from tests.testing.trainers import weights_of
from tests.testing.videos import encode_video, make_frames


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    rows = []
    for number, (shade, answer) in enumerate([(20, "one"), (230, "two"), (60, "one"), (200, "two")]):
        encode_video(folder / f"{number}.mp4", make_frames(8) // 16 + shade)
        rows.append({"video": f"{number}.mp4", "question": "which digit", "answer": answer})
    (folder / "train.json").write_text(json.dumps(rows))
    return load_video_texts(folder / "train.json")["train"]


def make_trainer(data, folder, **options):
    model, processor = tiny_pair()
    defaults = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "use_cpu": True}
    defaults |= {"eval_strategy": "no", "load_best_model_at_end": False, "disable_tqdm": True, "max_new_tokens": 2}
    arguments = AnswerTrainingArguments(output_dir=str(folder), **defaults | options)
    before = weights_of(model)
    adapters = choose_trained(model, arguments)
    dataset = VideoDataset(data, TextTask(processor, prompt="{}"), training=True)
    datasets = {"train_dataset": dataset, "eval_dataset": dataset}
    return AnswerTrainer(model, arguments, **datasets, processing_class=processor), before, adapters


def changed(before, after):
    return {name for name in before if name in after and not torch.equal(before[name], after[name])}


def test_the_tower_and_the_language_model_stay_as_they_are(data, tmp_path):
    trainer, before, adapters = make_trainer(data, tmp_path)
    trainer.train()
    moved = changed(before, weights_of(trainer.model))
    assert adapters is None
    assert not any("vision_model" in name or name.startswith("language_model") for name in moved)
    for part in ("query_tokens", "language_projection", "vision_layernorm", "frame_position_embeddings", "qformer"):
        assert any(part in name for name in moved), part


@pytest.mark.parametrize("part", ["vision_tower", "language_model"])
def test_either_is_trained_on_request(part, data, tmp_path):
    trainer, before, _ = make_trainer(data, tmp_path, **{f"train_{part}": True})
    trainer.train()
    moved = changed(before, weights_of(trainer.model))
    name_there = {"vision_tower": "vision_model"}.get(part, part)
    assert any(name_there in name for name in moved)


def test_adapters_train_beside_the_qformer_and_merge_into_a_plain_model(data, tmp_path):
    trainer, before, adapters = make_trainer(data, tmp_path, lora_rank=2, learning_rate=0.02, max_steps=3)
    trained = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert any("lora_A" in name for name in trained) and any("qformer" in name for name in trained)
    assert all("lora" in name for name in trained if name.startswith("language_model"))
    trainer.train()
    model, processor = trainer.model.eval(), trainer.processing_class
    inputs = processor([torch.zeros(4, 3, 14, 14, dtype=torch.uint8)], "which digit", return_tensors="pt")
    with torch.no_grad():
        expected = model(**inputs).logits
    model.language_model = adapters.merge_and_unload()
    assert changed(before, weights_of(model)) >= {"language_model.model.layers.0.self_attn.q_proj.weight"}
    model.save_pretrained(tmp_path / "plain")
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "plain")
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs).logits, expected, rtol=1e-3, atol=1e-4)


def outputs_of(model, processor):
    inputs = processor([torch.full((4, 3, 14, 14), 90, dtype=torch.uint8)], "which digit", return_tensors="pt")
    with torch.no_grad():
        return model.eval()(**inputs).logits


def test_a_checkpoint_with_adapters_is_a_whole_model(data, tmp_path):
    """It loads by itself, in every class and without a weight left as initialised, and its run goes on from it."""
    options = {"lora_rank": 2, "learning_rate": 0.02, "max_steps": 3, "save_strategy": "steps", "save_steps": 3}
    trainer, before, _ = make_trainer(data, tmp_path, **options)
    trainer.train()
    expected, checkpoint = outputs_of(trainer.model, trainer.processing_class), tmp_path / "checkpoint-3"
    trained = weights_of(trainer.model)
    for auto_class in (AutoModelForImageTextToText, AutoModel):
        loaded, report = auto_class.from_pretrained(checkpoint, output_loading_info=True)
        assert not report["missing_keys"] and not report["mismatched_keys"]
    model = AutoModelForImageTextToText.from_pretrained(checkpoint)
    assert weights_of(model).keys() == before.keys()
    torch.testing.assert_close(outputs_of(model, trainer.processing_class), expected, rtol=1e-4, atol=1e-5)
    # The adapters by themselves are those of the language model, as PEFT has them.
    plain, _ = tiny_pair()
    plain.memory_bank_qformer.load_state_dict(trainer.model.memory_bank_qformer.state_dict())
    plain.language_model = PeftModel.from_pretrained(plain.language_model, checkpoint / "adapter").merge_and_unload()
    torch.testing.assert_close(outputs_of(plain, trainer.processing_class), expected, rtol=1e-4, atol=1e-5)
    resumed, _, _ = make_trainer(data, tmp_path / "resumed", **options)
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert not changed(trained, weights_of(resumed.model)) and weights_of(resumed.model).keys() == trained.keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_run_in_half_precision_goes_on_from_its_checkpoint(dtype, data, tmp_path):
    """Its merged layers are rounded, and those that it is compared with are as well. PEFT's adapters stay float32."""
    trainer, _, _ = make_trainer(data, tmp_path, lora_rank=2, save_strategy="steps", save_steps=2)
    trainer.train()
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            if "lora_" not in name:
                parameter.data = parameter.to(dtype)
            elif "lora_B" in name:
                parameter.normal_(std=0.1)
    trainer.save_model(tmp_path / "checkpoint-2")
    trained = weights_of(trainer.model)
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            if "lora_" in name:
                parameter.zero_()
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert not changed(trained, weights_of(trainer.model))


def test_the_checkpoint_with_most_right_answers_comes_back(data, tmp_path, monkeypatch):
    trainer, _, _ = make_trainer(
        data, tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
        load_best_model_at_end=True, predict_with_generate=True, metric_for_best_model="top1",
    )  # fmt: skip
    asked, right = [], iter([1, 3, 2])

    def predict_answers(dataset):
        asked.append([dataset[index]["text_target"] for index in range(len(dataset))])
        wrong = 4 - next(right)
        return [["wrong"]] * wrong + [[answer] for answer in asked[-1][wrong:]], asked[-1]

    monkeypatch.setattr(trainer, "predict_answers", predict_answers)
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2") and trainer.state.best_metric == 3 / 4
    assert asked == [["one", "two", "one", "two"]] * 3
    assert [log["eval_top1"] for log in trainer.state.log_history if "eval_top1" in log] == [1 / 4, 3 / 4, 2 / 4]


def test_the_best_checkpoint_comes_back_with_its_adapters(data, tmp_path):
    options = {"lora_rank": 2, "learning_rate": 0.02, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    options |= {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    trainer, _, _ = make_trainer(data, tmp_path, **options)
    trainer.train()
    best = AutoModelForImageTextToText.from_pretrained(trainer.state.best_model_checkpoint)
    torch.testing.assert_close(
        outputs_of(trainer.model, trainer.processing_class),
        outputs_of(best, trainer.processing_class),
        rtol=1e-4,
        atol=1e-5,
    )


def test_only_matrices_decay(data, tmp_path):
    trainer, _, _ = make_trainer(data, tmp_path, no_weight_decay=["query_tokens"])
    names = trainer.get_decay_parameter_names(trainer.model)
    parameters = dict(trainer.model.named_parameters())
    assert names and all(parameters[name].ndim > 1 and parameters[name].requires_grad for name in names)
    assert not any("query_tokens" in name for name in names)
    assert any("frame_position_embeddings" in name for name in names)


def test_answers_of_an_evaluation_are_measured(data, tmp_path):
    trainer, _, _ = make_trainer(data, tmp_path, predict_with_generate=True, num_beams=2, num_return_sequences=2)
    metrics = trainer.evaluate()
    found, true = trainer.predict_answers(trainer.eval_dataset)
    assert {name: metrics[f"eval_{name}"] for name in ("top1", "any")} == exact_match(found, true)


def test_it_learns_and_generates_what_it_learned(data, tmp_path):
    options = {"max_steps": 30, "learning_rate": 1e-2, "train_language_model": True, "num_return_sequences": 2}
    trainer, _, _ = make_trainer(data, tmp_path, **options, repetition_penalty=1.0, num_beams=3)
    dataset = VideoDataset(data, TextTask(trainer.processing_class, prompt="{}"), training=False)
    trainer.eval_dataset = dataset
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < 0.3 * before
    found, true = trainer.predict_answers(dataset)
    assert true == ["one", "two", "one", "two"] and all(len(answers) == 2 for answers in found)
    assert [answers[0] for answers in found] == true


def test_answers_are_compared_word_for_word():
    found = [["a cat", "cat"], ["dog runs"], ["bird"]]
    assert exact_match(found, ["cat", "dog", "bird"]) == {"top1": pytest.approx(1 / 3), "any": pytest.approx(2 / 3)}
    first = exact_match(found, ["cat", "dog", "bird"], first_words=True)
    assert first == {"top1": pytest.approx(2 / 3), "any": 1.0}
    with pytest.raises(ValueError, match="Answers of 3 videos"):
        exact_match(found, ["cat"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": -1}, "lora_rank is -1"),
        ({"lora_rank": 2, "train_language_model": True}, "adapts a frozen language model"),
        ({"num_return_sequences": 6}, "num_return_sequences is 6; from 1 to num_beams"),
        ({"metric_for_best_model": "top1"}, "metric_for_best_model=top1 needs predict_with_generate=true"),
    ],
)
def test_wrong_arguments_are_named(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        AnswerTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **options)
