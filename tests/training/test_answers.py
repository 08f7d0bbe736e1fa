"""Fine-tuning to answer: what is trained, adapters, generated answers, and their score."""

import pytest
import torch
from safetensors.torch import load_file

from hf_video.data import TextTask, VideoDataset
from hf_video.training.answers import AnswerTrainer, AnswerTrainingArguments, choose_trained, exact_match
from tests.testing.answering import tiny_pair
from tests.testing.trainers import LAST_WEIGHTS, weights_of


def make_trainer(rows, folder, **options):
    model, processor = tiny_pair()
    defaults = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "use_cpu": True}
    defaults |= {"disable_tqdm": True, "max_new_tokens": 2, **LAST_WEIGHTS}
    arguments = AnswerTrainingArguments(output_dir=str(folder), **defaults | options)
    before = weights_of(model)
    adapters = choose_trained(model, arguments)
    dataset = VideoDataset(rows, TextTask(processor, prompt="{}"), training=True)
    datasets = {"train_dataset": dataset, "eval_dataset": dataset}
    return AnswerTrainer(model, arguments, **datasets, processing_class=processor), before, adapters


def changed(before, after):
    return {name for name in before if name in after and not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("part", [None, "vision_tower", "language_model"])
def test_the_tower_and_the_language_model_are_trained_on_request_alone(part, answers, tmp_path):
    trainer, before, adapters = make_trainer(answers, tmp_path, **({f"train_{part}": True} if part else {}))
    trainer.train()
    moved = changed(before, weights_of(trainer.model))
    assert adapters is None
    assert any("vision_model" in name for name in moved) == (part == "vision_tower")
    assert any(name.startswith("language_model") for name in moved) == (part == "language_model")
    for name in ("query_tokens", "language_projection", "vision_layernorm", "frame_position_embeddings", "qformer"):
        assert any(name in each for each in moved), name


def test_adapters_are_trained_and_those_of_the_best_checkpoint_come_back(answers, tmp_path):
    options = {"lora_rank": 2, "learning_rate": 0.02, "max_steps": 3, "save_strategy": "steps", "save_steps": 1}
    options |= {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True, "save_total_limit": 3}
    trainer, before, adapters = make_trainer(answers, tmp_path, **options)
    names = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert any("lora_A" in name for name in names) and any("qformer" in name for name in names)
    assert all("lora" in name for name in names if name.startswith("language_model"))
    trainer.train()
    best = load_file(f"{trainer.state.best_model_checkpoint}/model.safetensors")
    after = weights_of(trainer.model)
    assert any("lora_B" in name for name in best) and not changed(best, after)
    trainer.model.language_model = adapters.merge_and_unload()
    moved = changed(before, weights_of(trainer.model))
    assert "language_model.model.layers.0.self_attn.q_proj.weight" in moved


def test_the_checkpoint_with_most_right_answers_comes_back(answers, tmp_path, monkeypatch):
    trainer, _, _ = make_trainer(
        answers, tmp_path, max_steps=3, eval_strategy="steps", eval_steps=1, save_strategy="steps", save_steps=1,
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


def test_only_matrices_decay(answers, tmp_path):
    trainer, _, _ = make_trainer(answers, tmp_path, no_weight_decay=["query_tokens"])
    names = trainer.get_decay_parameter_names(trainer.model)
    parameters = dict(trainer.model.named_parameters())
    assert names and all(parameters[name].ndim > 1 and parameters[name].requires_grad for name in names)
    assert not any("query_tokens" in name for name in names)
    assert any("frame_position_embeddings" in name for name in names)


def test_it_learns_and_generates_what_it_learned(answers, tmp_path):
    options = {"max_steps": 30, "learning_rate": 1e-2, "train_language_model": True, "num_return_sequences": 2}
    options |= {"repetition_penalty": 1.0, "num_beams": 3, "predict_with_generate": True}
    trainer, _, _ = make_trainer(answers, tmp_path, **options)
    dataset = VideoDataset(answers, TextTask(trainer.processing_class, prompt="{}"), training=False)
    trainer.eval_dataset = dataset
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < 0.3 * before["eval_loss"]
    found, true = trainer.predict_answers(dataset)
    assert true == ["one", "two", "one", "two"] and all(len(each) == 2 for each in found)
    assert [each[0] for each in found] == true
    assert after["eval_top1"] == after["eval_any"] == 1 > before["eval_top1"]


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
        ({"num_return_sequences": 6}, r"`num_return_sequences` \(6\) has to be smaller or equal to `num_beams`"),
        ({"metric_for_best_model": "top1"}, "metric_for_best_model=top1 needs predict_with_generate=true"),
    ],
)
def test_wrong_arguments_are_named(options, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        AnswerTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **options)
