"""Reading the names of classes."""

import pytest
from torchvision.models import EfficientNet_B0_Weights
from torchvision.models.video import MViT_V1_B_Weights

from hf_video.loading.class_names import read_class_names

NAMES = ["riding, a bike", "marching", "dodgeball"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("lines.txt", "riding, a bike\nmarching\ndodgeball\n"),
        ("windows.txt", "\ufeffriding, a bike\r\n marching \r\ndodgeball\r\n\r\n"),
        ("no_suffix", "riding, a bike\nmarching\ndodgeball"),
        ("list.json", '["riding, a bike", "marching", "dodgeball"]'),
        ("id2label.json", '{"2": "dodgeball", "0": "riding, a bike", "1": "marching"}'),
        ("label2id.json", '{"dodgeball": 2, "riding, a bike": 0, "marching": 1}'),
        (
            "config.json",
            '{"model_type": "vit", "id2label": {"0": "riding, a bike", "1": "marching", "2": "dodgeball"}}',
        ),
        ("LIST.JSON", '["riding, a bike", "marching", "dodgeball"]'),
        ("UPPER.CSV", '0,"riding, a bike"\n1,marching\n2,dodgeball\n'),
        ("plain.csv", '0,"riding, a bike"\n1,marching\n2,dodgeball\n'),
        ("header.csv", 'id,name\r\n2,dodgeball\r\n0,"riding, a bike"\r\n1,marching\r\n'),
    ],
)
def test_every_kind_of_file(tmp_path, file, content):
    (tmp_path / file).write_text(content, encoding="utf-8", newline="")
    assert read_class_names(tmp_path / file) == read_class_names(str(tmp_path / file)) == NAMES


def test_the_lists_of_torchvision():
    kinetics, imagenet = read_class_names("kinetics400"), read_class_names("imagenet1k")
    assert kinetics == MViT_V1_B_Weights.DEFAULT.meta["categories"] == sorted(kinetics)
    assert imagenet == EfficientNet_B0_Weights.DEFAULT.meta["categories"]
    assert (len(set(kinetics)), len(set(imagenet))) == (400, 1000)


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("a.txt", None, "a.txt"),
        ("a.txt", "", "a.txt"),
        ("a.txt", "up\n\ndown\n", "class 1"),
        ("a.txt", "up\ndown\nup\n", "class 2"),
        ("a.json", "[1, 2]", "a.json"),
        ("a.json", '{"a": "b"}', r"\('a', 'b'\)"),
        ("a.json", '{"0": "up", "2": "down"}', "class 1"),
        ("a.json", '{"up": 0, "down": 0}', "class 0"),
        ("a.csv", "0,up\n1,down,left\n", "'1', 'down', 'left'"),
        ("a.csv", "id,name\n1,up\n2,down\n", "class 0"),
        ("kinetics600", None, "kinetics400"),
    ],
)
def test_what_names_no_classes_is_refused(tmp_path, file, content, named):
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(ValueError, match=named):
        read_class_names(file if file == "kinetics600" else tmp_path / file)
