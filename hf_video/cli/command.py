"""What a command is, and how the words of a command line become its settings."""

import argparse
import os
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

import hf_video
from hf_video.settings import (
    OTHER_FLAGS,
    Setting,
    Settings,
    aliases_of,
    closest,
    find_setting,
    groups_of,
    read_values,
    settings_of,
    training_argument_fields,
    training_argument_names,
)

from . import EXIT_CODES

_WITHOUT_FLAG = ("word", "words", "rest")


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: a name, a sentence, typed settings and a function.

    Attributes:
        help: the sentence in the list of commands.
        settings: a dataclass, whose fields become flags.
        tasks: dataclasses in its place by the values of `--task`, if the command has this flag.
        run: gets the settings, and returns an exit code (`EXIT_CODES`).
        description, epilog, usage: texts of its `--help`.
        takes_several_processes: whether a launcher may start it several times at once.
    """

    name: str
    help: str
    settings: type[Settings]
    run: Callable[[Any], int]
    tasks: dict[str, Any] = field(default_factory=dict)
    description: str = ""
    epilog: str | Callable[[], str] = ""
    usage: str | None = None
    takes_several_processes: bool = False


def command(help: str, **texts: Any) -> Callable[[Callable[[Any], int]], Command]:
    """A decorator that makes a command of a function. Its name is that of the module, whose docstring describes it.
    Its settings are of the type of the function's argument. `texts` are further fields of [`Command`]."""

    def make(run: Callable[[Any], int]) -> Command:
        module, (kind, *_) = sys.modules[run.__module__], typing.get_type_hints(run).values()
        name = run.__module__.rpartition(".")[2].replace("_", "-")
        return Command(name=name, help=help, settings=kind, run=run, **{"description": module.__doc__ or ""} | texts)

    return make


def parse(argv: Sequence[str], commands: Sequence[Command]) -> tuple[Command, Any]:
    """The command that words name, and its settings; `argparse` exits on a mistake, and after help.

    Args:
        argv: the words after `hf-video`.
        commands: all commands.

    Raises:
        ValueError: there is no such flag, a value is not of the type of its setting, or it is out of its bounds.
    """
    parser = argparse.ArgumentParser(
        prog="hf-video",
        description="Train, evaluate and use video classifiers with Hugging Face Transformers.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hf-video {hf_video.__version__}")
    added = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    kind: Any = None
    for command in commands:
        is_chosen = argv[:1] == [command.name]
        epilog = command.epilog if isinstance(command.epilog, str) else command.epilog() if is_chosen else ""
        of_command = added.add_parser(
            command.name,
            help=command.help,
            description=command.description or f"{command.help[0].upper()}{command.help[1:]}.",
            epilog=epilog,
            usage=command.usage,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        of_command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        of_command.set_defaults(command=command, parser=of_command, given={})
        if is_chosen:
            kind = _kind_of(command, of_command, argv)
            argv = _add_flags(of_command, kind, argv)
    try:
        args, rest = parser.parse_known_args(argv)
        _refuse(rest, args, kind)
    except SystemExit as end:
        for word in argv if end.code else ():
            if word.startswith("-") and os.path.lexists(word):
                print(f"{word} is a file here. Its name begins like an option: write ./{word}", file=sys.stderr)
        raise
    texts = {name: text for name, (_, text) in args.given.items()}
    flags = {name: flag for name, (flag, _) in args.given.items()}
    return args.command, kind(**read_values(kind, texts, spelled=flags))


class _Given(argparse.Action):
    """Stores (flag as the user wrote it, its text) in the namespace, in the mapping `given` by name of setting."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        word = values if self.nargs != 0 else "false" if str(flag).startswith("--no-") else "true"
        namespace.given = namespace.given | {self.dest: (flag or self.metavar, word)}


class _GivenAgain(_Given):
    """Stores a list of the texts of a flag that may be given several times."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, flag: str | None = None) -> None:
        _, before = namespace.given.get(self.dest, (flag, []))
        super().__call__(parser, namespace, [*before, values], flag)


def _kind_of(command: Command, parser: argparse.ArgumentParser, argv: Sequence[str]) -> Any:
    """The settings of the task that `--task` names, or a line in the recipe."""
    if not command.tasks:
        return command.settings
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for added in (first, parser):
        kinds = list(command.tasks.values())
        names = [name for number, name in enumerate(command.tasks) if kinds[number] not in kinds[:number]]
        help = f"what is learned: {', '.join(names)}; each task has its own settings"
        added.add_argument("--task", metavar="TASK", help=help)
    first.add_argument("--recipe")
    words, _ = first.parse_known_args(argv)
    task = words.task
    if task is None and words.recipe is not None:
        from hf_video.training.recipes import read_recipe

        task = read_recipe(words.recipe).get("task")
    if task is not None and task not in command.tasks:
        known = ", ".join(command.tasks)
        raise ValueError(f"--task is {task!r}. {closest(task, command.tasks)} Known are {known}.".replace("  ", " "))
    return command.settings if task is None else command.tasks[task]


def _add_flags(parser: argparse.ArgumentParser, kind: Any, argv: Sequence[str]) -> list[str]:
    """Declares the settings of a command, and gives the words with each optional value bound to its flag."""
    known, aliases = settings_of(kind), aliases_of(kind)
    has_common = any(each.common for each in known.values())
    shows_all = "--help-all" in argv or not has_common
    if has_common:
        parser.add_argument("--help-all", action="help", help="list every setting and exit")
    for title, listed in groups_of(kind).items():
        group = parser.add_argument_group(title)
        for each in listed:
            if each.name != "training_arguments":
                names = [each.name, *(alias for alias, name in aliases.items() if name == each.name)]
                # A recipe may give a value and switch something on.
                is_shown = shows_all or each.common
                _add(parser if each.form in _WITHOUT_FLAG else group, each, names, "recipe" in known, is_shown)
    optional_values = {each.flag: (each.bare, each.choices) for each in known.values() if each.bare}
    if "training_arguments" in known:
        # The beginning of a flag may stand for another one when all are declared.
        parser.allow_abbrev = False
        flags = {
            word.partition("=")[0] for word in argv if word.startswith("--")
        } - parser._option_string_actions.keys()
        fields = {flag[2:].removeprefix("no-").replace("-", "_") for flag in flags} & {*training_argument_names()}
        if shows_all or fields:
            group = parser.add_argument_group("Other fields of transformers.TrainingArguments")
            for name, each in training_argument_fields().items():
                # `--debug` shows tracebacks.
                if name not in (*known, *kind.no_effect, *OTHER_FLAGS, "debug"):
                    options: dict[str, Any] = {"dest": name, "action": _Given, "default": argparse.SUPPRESS}
                    # A text that may also be a boolean has any value behind it.
                    bare: dict[str, Any] = (
                        {"nargs": "?", "const": "true"} if {bool, str} <= {*typing.get_args(each.type)} else {}
                    )
                    help = each.help.partition(". ")[0].replace("%", "%%")
                    group.add_argument(each.flag, metavar=each.placeholder, help=help, **options, **bare)
                    if each.is_switch:
                        group.add_argument(f"--no-{each.flag[2:]}", nargs=0, help=argparse.SUPPRESS, **options)
                    if each.is_switch and not bare:
                        optional_values[each.flag] = ("true", ["true", "false"])
    return _bind(argv, optional_values)


def _add(group: Any, each: Setting, names: Sequence[str], has_recipe: bool, is_shown: bool) -> None:
    """Declares a setting to `argparse`."""
    default = each.describe_default()
    text = (each.help + (f" (default: {default})" if default else "")).replace("%", "%%")
    options: dict[str, Any] = {"action": _Given, "default": argparse.SUPPRESS, "metavar": each.placeholder}
    options["help"] = text if is_shown else argparse.SUPPRESS
    if each.form in _WITHOUT_FLAG:
        optional = "?" if each.default is not MISSING else None
        group.add_argument(
            each.name, nargs={"word": optional, "words": "+", "rest": argparse.REMAINDER}[each.form], **options
        )
        return
    flags = [f"--{name.replace('_', '-')}" for name in names]
    if each.is_switch:
        options |= {"nargs": 0, "metavar": None}
        flags += [f"--no-{flag[2:]}" for flag in flags] if has_recipe else []
    elif each.form == "flags":
        options["action"] = _GivenAgain
    elif each.form == "several":
        options["nargs"] = "+"
    group.add_argument(*flags, dest=each.name, required=each.default is MISSING, **options)


def _bind(argv: Sequence[str], optional_values: Mapping[str, tuple[str | None, list[str]]]) -> list[str]:
    """The words of a command line, with `=` between an option that may have a value and this value: `argparse` would
    take any word behind it, as DATA in `--resume DATA`. For each option there is the value that it has by itself, and
    those that may stand behind it."""
    words, bound = [*argv], []
    while words:
        word = words.pop(0)
        if word in optional_values:
            by_itself, behind = optional_values[word]
            word += f"={words.pop(0) if words and words[0] in behind else by_itself}"
        bound.append(word)
    return bound


def _refuse(rest: Sequence[str], args: argparse.Namespace, kind: Any) -> None:
    """Refuses the words that `argparse` has left. A `ValueError` has the flag for `name=value`, or the closest flag to
    one that the command does not have."""
    parser = args.parser
    if kind is not None and "training_arguments" in settings_of(kind):
        for word in (*rest, args.given.get("data", ("", ""))[1]):
            name, equals, value = word.partition("=")
            if name.startswith("--"):
                plain = name[2:].replace("-", "_")
                if plain in (*OTHER_FLAGS, *kind.no_effect):
                    find_setting(kind, plain)
                for task, other in args.command.tasks.items():
                    if plain in settings_of(other):
                        raise ValueError(f"{name} has no effect here, but with --task {task}: leave it out.")
                known = [
                    *parser._option_string_actions,
                    *(f"--{each.replace('_', '-')}" for each in training_argument_names()),
                ]
                hint = closest(name, known) or f"`{parser.prog} --help-all` lists them."
                raise ValueError(f"{parser.prog} has no option {name}. {hint}")
            if equals and name.isidentifier() and not os.path.lexists(word):
                raise ValueError(f"{word}: {_as_flag(find_setting(kind, name), name, value)}")
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")


def _as_flag(setting: Setting, name: str, value: str) -> str:
    """A sentence with the words that give a setting its value."""
    if setting.form == "word":
        return f"{setting.placeholder} needs no name. Write {value}"
    is_switch = setting.is_switch and value in ("true", "false")
    flag = f"{'no-' if is_switch and value == 'false' else ''}{name.replace('_', '-')}"
    return f"a setting is a flag. Write --{flag}{'' if is_switch else f' {value}'}"
