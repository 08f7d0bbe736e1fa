"""Values of settings as the flags of a command."""

from hf_video.cli.command_settings import TRAIN


def flags_of(values, settings=TRAIN):
    """The words that give a command these values, by name of setting."""
    words = []
    for name, value in values.items():
        each, flag = settings.by_name.get(settings.canonical(name)), name.replace("_", "-")
        if each is not None and each.is_switch:
            words.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            words.append(f"--{flag}={str(value).lower() if isinstance(value, bool) else value}")
    return words
