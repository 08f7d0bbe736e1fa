import pytest

from hf_video.training.arguments import VideoTrainingArguments, parse_training_arguments


def test_defaults_keep_the_best_checkpoint_and_follow_the_seed(tmp_path):
    arguments = VideoTrainingArguments(output_dir=str(tmp_path), seed=7)
    assert arguments.load_best_model_at_end and arguments.metric_for_best_model == "top1_accuracy"
    assert arguments.greater_is_better
    assert arguments.data_seed == 7


def test_words_are_read_by_the_type_of_their_field_and_win(tmp_path):
    arguments = parse_training_arguments(
        ["weight_decay=0.1", "activation_checkpointing=true", "save_total_limit=5"],
        output_dir=str(tmp_path),
        weight_decay=0.3,
        seed=3,
    )
    assert (arguments.weight_decay, arguments.activation_checkpointing, arguments.save_total_limit) == (0.1, True, 5)
    assert arguments.seed == 3


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("weight_decy=0.1", "'weight_decy' is not a training argument. Did you mean weight_decay?"),
        ("qqq=1", "'qqq' is not a training argument. See the documentation"),
        ("weight_decay=much", "weight-decay: invalid float value: 'much'"),
        ("eval_strategy=often", r"invalid choice: 'often' \(choose from 'no', 'steps', 'epoch'\)"),
    ],
)
def test_wrong_words_are_named(tmp_path, word, message):
    with pytest.raises(ValueError, match=message):
        parse_training_arguments([word], output_dir=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
