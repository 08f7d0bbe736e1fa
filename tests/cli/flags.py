"""What the words of a command line make of its settings."""

from hf_video.cli.command import parse
from hf_video.cli.main import COMMANDS
from hf_video.settings import find_type, settings_of
from hf_video.training import TrainSettings


def read(words):
    """The settings that the words after `hf-video` give."""
    return parse([*words], COMMANDS)[1]


def flags_of(values, kind=TrainSettings):
    """The words that give a command these values, by name of setting."""
    words = []
    for name, value in values.items():
        each, flag = settings_of(kind).get(find_type(kind, name)[0]), name.replace("_", "-")
        if each is not None and each.is_switch:
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag}={str(value).lower() if isinstance(value, bool) else value}")
    return words
