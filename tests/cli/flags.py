"""What the words of a command line make of its settings."""

import yaml

from hf_video.cli.command import parse
from hf_video.cli.main import COMMANDS
from hf_video.settings import find_setting
from hf_video.training.recipes import published_recipe


def settings_of(recipe):
    """The settings in a file, and in what it extends, as YAML has them."""
    own = yaml.safe_load(recipe.read_text())
    base = own.pop("extends", None)
    merged = own if base is None else settings_of(published_recipe(base)) | own
    return {name: value for name, value in merged.items() if value is not None}


def read(words):
    """The settings that the words after `hf-video` give."""
    return parse([*words], COMMANDS)[1]


def flags_of(values):
    """The words that give a command these values, by name of setting."""
    words = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        words.append(f"--{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"--{flag}={value}")
    return words


def check_settings_land(trainer, values, kind):
    """Whatever has a field of the name of a setting, among what a trainer trains with, has its value."""
    processor, collate = trainer.processing_class, trainer.data_collator
    places = [trainer.args, trainer.model.config, processor, getattr(processor, "video_processor", None)]
    places += [trainer.train_dataset.task.augmentation, getattr(collate, "mixing", collate), trainer.model]
    for name, value in values.items():
        name = find_setting(kind, name).name
        found = [getattr(place, name) for place in places if hasattr(place, name)]
        assert found, name
        assert all(each == (float(value) if isinstance(each, float) else value) for each in found), name
