"""Writes the reference page of all settings: `python -m hf_video.cli.reference > docs/settings.md`."""

from dataclasses import MISSING

from hf_video.settings import Setting, describe_type

from .command_line import CommandSettings
from .command_settings import ALL

INTRODUCTION = """\
# Settings

This page is written by `make docs` from the declarations of the settings.

Each setting is a flag, such as `--weight-decay 0.1` for `weight_decay`. `hf-video train`, `pretrain`, `train-answers`
and `probe` also take them from a recipe: `--recipe` names a published one, or a YAML file with a line such as
`weight_decay: 0.1` for each setting. A flag replaces the value in the recipe. Every other field of
[`transformers.TrainingArguments`](https://huggingface.co/docs/transformers/main_classes/trainer) is a setting of these
four commands, too.

`--resume` continues a run with its settings. A setting marked with ↻ may have another value then. Every other setting
is fixed, since it may change the result. On another number of processes, `per_device_train_batch_size` and
`gradient_accumulation_steps` may differ if a step has as many videos as before.

`--resume auto` begins a run, and continues it if there is a checkpoint, so that a scheduler can start the same command
again and again. The settings and the data of the command must be those that the run began with.
"""


def reference() -> str:
    """The page, in Markdown."""
    return "\n".join([INTRODUCTION, *(_section(name, settings) for name, settings in ALL.items())])


def _section(name: str, settings: CommandSettings) -> str:
    lines = [f"## hf-video {name}", ""]
    is_resumed = name.startswith(("train", "pretrain"))
    for title, listed in settings.groups().items():
        lines += [f"### {title}", "", "| Setting | Values | Default | |", "|---|---|---|---|"]
        lines += [_row(each, settings.aliases_of(each), is_resumed) for each in listed]
        lines.append("")
    return "\n".join(lines)


def _row(each: Setting, aliases: list[str], is_resumed: bool) -> str:
    names = ", ".join(f"`{name}`" for name in (each.name, *aliases))
    mark = " ↻" if is_resumed and each.is_changeable else ""
    default = "required" if each.default is MISSING else each.describe_default().replace(",", ", ")
    return f"| {names}{mark} | {describe_type(each.type)} | {default} | {each.help} |".replace("|  |", "| |")


if __name__ == "__main__":
    print(reference(), end="")
