"""The cards of the released original checkpoints: in step with the facts, valid, and with code that runs."""

import ast
import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from PIL import Image
from transformers import AutoModel, AutoProcessor

import hf_video
from hf_video.auto import CLASSES
from hf_video.hub import publish
from hf_video.hub.folder_checks import check_card
from hf_video.processing import CenterCropImageProcessor
from tests.data.detection_files import write_videos
from tests.hub_server.fixtures import run_in_fresh_process
from tests.models.video_text.retrieval_model import write_retrieval_model
from tests.testing.answering import tiny_pair
from tests.training.detection_testing import make_detector
from tests.training.detection_testing import make_processor as detection_processor

from .conftest import TINY_CLASSIFIERS, make_processor

FOLDER = Path(__file__).parents[2] / "model_cards"
FAMILIES = {
    "videovit": "VideoViT",
    "videomamba": "VideoMamba",
    "video_text_dual_encoder": "VideoTextDualEncoder",
    "memory_bank_qformer": "MemoryBankQFormer",
    "stmixer": "STMixer",
}


@pytest.fixture(scope="module")
def generator():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("generate")
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def cards(generator):
    return generator.read_released()


@pytest.fixture(scope="module")
def texts(generator, cards):
    """The text of each card, by its name."""
    return {card.name: generator.render(card) for card in cards}


def test_the_cards_and_tables_that_are_kept_are_what_the_facts_give(generator, cards, texts):
    kept = {path.stem: path.read_text() for path in FOLDER.glob("*/*.md")}
    assert kept == {name: texts[name] for name in generator.SHORT_TABLE}, "run make cards"
    written = generator.write_tables(cards)
    assert [path.name for path in written] == ["models.md", "released_models.json"]
    assert all(path.read_text() == text for path, text in written.items()), "run make cards"


def test_every_card_is_valid_for_the_hub(texts):
    assert {name: problems for name, text in texts.items() if (problems := check_card(text))} == {}


def test_the_card_of_one_is_written_into_its_folder(generator, texts, tmp_path):
    name = "videomae-base-finetuned-kinetics"
    generator.main([f"MCG-NJU/{name}", str(tmp_path)])
    assert (tmp_path / "README.md").read_text() == texts[name]


def test_every_conversion_command_is_one(hub, cards, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "original.json").write_text('{"model_kwargs": {"memory_bank_length": 10}}')
    for card in cards:
        words = shlex.split(card.command.splitlines()[-1])
        assert words[:2] == ["hf-video", "convert"] and words[4] == card.name
        source = importlib.import_module(f"conversion.{words[2]}")
        with pytest.raises(SystemExit):
            source.main(words[3:])
        missing = (
            f"There is no file {words[3]}" if not card.source.startswith("hf_") else f"{words[3]} is neither a folder"
        )
        assert missing in capsys.readouterr().err


def test_a_card_converts_the_file_before_it_loads_the_folder(cards, texts):
    """No repository has these models."""
    for card in cards:
        text = texts[card.name]
        (shell,), (program,) = (re.findall(rf"```{name}\n(.*?)```", text, re.DOTALL) for name in ("bash", "python"))
        assert text.index(shell) < text.index(program)
        assert f'model_id = "{shlex.split(shell.splitlines()[-1])[4]}"\n' in program


@pytest.mark.slow
def test_the_code_of_every_kind_of_card_runs(hub, cards, texts, tmp_path, unverified):
    """Tiny models stand in for the weights; cards of a kind differ by name alone."""
    kinds = {}
    for card in cards:
        kinds.setdefault((card.family, card.auto_class), card)
    programs = []
    for (family, auto_class), card in kinds.items():
        names = {row.auto_class: row.class_name for row in CLASSES if row.config_class == f"{FAMILIES[family]}Config"}
        folder = tmp_path / card.name
        torch.manual_seed(0)
        if auto_class == "AutoModelForImageTextToText":
            model, processor = tiny_pair(memory_bank_length=2)
        elif family == "stmixer":
            model, processor = make_detector(num_queries=1), detection_processor()
            with torch.no_grad():
                # The query finds a person.
                model.layers[-1].person_head.output.bias.copy_(torch.tensor([9.0, -9.0]))
        elif card.is_dual_encoder:
            (tmp_path / "golden").mkdir()
            converted = write_retrieval_model(tmp_path / "golden")
            model, processor = AutoModel.from_pretrained(converted), AutoProcessor.from_pretrained(converted)
        else:
            config = getattr(hf_video, f"{FAMILIES[family]}Config")(
                **TINY_CLASSIFIERS[FAMILIES[family]], id2label={0: "a", 1: "b"}, label2id={"a": 0, "b": 1}
            )
            model = getattr(hf_video, names[auto_class])(config)
            is_image = auto_class == "AutoModelForImageClassification"
            size = {"height": 32, "width": 32}
            processor = CenterCropImageProcessor(size=size, crop_size=size) if is_image else make_processor()
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        text = texts[card.name]
        (folder / "README.md").write_text(text)
        publish(folder, f"hf-video/{card.name}")
        programs += re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        assert ModelCard.load(HfApi().hf_hub_download(f"hf-video/{card.name}", "README.md")).text
    assert len(programs) == len(kinds) == 9

    (write_videos(tmp_path) / "a.mp4").rename(tmp_path / "video.mp4")
    Image.new("RGB", (32, 32)).save(tmp_path / "image.png")
    process = run_in_fresh_process(hub, "\n".join(programs), with_hf_video=True, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    printed = process.stdout.strip().splitlines()
    assert len(printed) == 9
    (answers,) = [ast.literal_eval(line) for line in printed if line.startswith("['")]
    assert len(answers) == 1 and answers[0]
