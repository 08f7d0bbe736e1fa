"""The reference pages of all settings, one a command, for `docs/site/hooks.py`."""

from dataclasses import MISSING
from typing import Any

from hf_video.cli.command import Command
from hf_video.cli.main import COMMANDS
from hf_video.settings import Setting, describe_type, groups_of, settings_of

INTRODUCTION = """\
# Settings

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

In Python the same names are fields: `train(TrainSettings(data="my_videos", output_dir="my_model", weight_decay=0.1))`.

"""


def settings_pages() -> dict[str, str]:
    """The pages in Markdown, by name, the overview first."""
    commands = [command for command in COMMANDS if settings_of(command.settings)]
    # The page of `hf-video index` makes room for the overview.
    names = {
        command.name: f"{command.name}-command" if command.name == "index" else command.name for command in commands
    }
    listed = (f"- [`hf-video {each.name}`]({names[each.name]}.md): {each.help}\n" for each in commands)
    return {"index": INTRODUCTION + "".join(listed), **{names[each.name]: _page(each) for each in commands}}


def _page(command: Command) -> str:
    kind: Any = command.settings
    lines = [f"# hf-video {command.name}", "", "[About settings](index.md)", ""]
    lines += ['<div class="settings" markdown>', ""]
    has_changeable = "resume" in settings_of(kind)
    for title, listed in groups_of(kind).items():
        lines += [f"## {title}", "", "| Setting | Values | Default | |", "|---|---|---|---|"]
        lines += [_row(each, has_changeable) for each in listed if each.name != "training_arguments"]
        lines.append("")
    return "\n".join([*lines, "</div>", ""])


def _row(each: Setting, has_changeable: bool) -> str:
    names = ", ".join(f"`{name}`" for name in (each.name, each.alias) if name)
    mark = " ↻" if has_changeable and each.changeable else ""
    default = "required" if each.default is MISSING else each.describe_default().replace(",", ", ")
    return f"| {names}{mark} | {describe_type(each.type)} | {default} | {each.help} |".replace("|  |", "| |")
