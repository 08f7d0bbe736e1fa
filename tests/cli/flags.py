"""What the words of a command line make of its settings."""

from hf_video.cli.command import parse
from hf_video.cli.main import COMMANDS


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
