"""What a command is, and how the words of a command line become its settings."""

import argparse
import itertools
import sys
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from hf_video.settings import (
    OTHER_FLAGS,
    Setting,
    Settings,
    closest,
    find_setting,
    groups_of,
    read_value,
    settings_of,
    training_argument_fields,
    training_argument_names,
)
from hf_video.version import __version__

from . import EXIT_CODES

_WITHOUT_FLAG = ("word", "words", "rest")
# What others call a command.
_OTHER_NAMES = {"finetune": "train", "fine-tune": "train"}


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command: a name, a sentence, typed settings and a function.

    Attributes:
        help: the sentence in the list of commands.
        settings: a dataclass, whose fields become flags.
        tasks: gives dataclasses in its place by the values of `--task`, if the command has this flag.
        run: gets the settings, and returns an exit code (`EXIT_CODES`).
        description, epilog, usage: texts of its `--help`.
        takes_several_processes: whether a launcher may start it several times at once.
        group: the title above it in the list of commands.
    """

    name: str
    help: str
    settings: type[Settings]
    run: Callable[[Any], int]
    tasks: Callable[[], dict[str, Any]] = dict
    description: str = ""
    epilog: str | Callable[[], str] = ""
    usage: str | None = None
    takes_several_processes: bool = False
    group: str = "Commands"


def command(help: str, **texts: Any) -> Callable[[Callable[[Any], int]], Command]:
    """A decorator that makes a command of a function. Its name is that of the module, whose docstring describes it;
    an example at the end stands below the options. Its settings are of the type of the function's argument. `texts`
    are further fields of [`Command`]."""

    def make(run: Callable[[Any], int]) -> Command:
        kind, *_ = typing.get_type_hints(run).values()
        description, example, words = str(sys.modules[run.__module__].__doc__).partition("\nexample")
        texts_of_module = {"description": description, "epilog": f"{example}{words}"}
        name = run.__module__.rpartition(".")[2].replace("_", "-")
        return Command(name=name, help=help, settings=kind, run=run, **texts_of_module | texts)

    return make


class _Parser(argparse.ArgumentParser):
    """A parser whose mistakes end a command as all others do."""

    def error(self, message: str) -> typing.NoReturn:
        raise ValueError(f"{message} (`{self.prog} --help` says more)")


class _Read(argparse.Action):
    """Stores what a word says, by the type of its setting."""

    def __init__(self, *, setting: Setting, **options: Any):
        super().__init__(default=argparse.SUPPRESS, **options)
        self.setting = setting

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        if self.nargs == 0:
            values = not str(flag).startswith("--no-")
        elif self.setting.form == "flags":
            values = [*getattr(namespace, self.dest, []), values]
        setattr(namespace, self.dest, read_value(self.setting.type, values, str(flag or self.metavar)))


def parse(argv: Sequence[str], commands: Sequence[Command]) -> tuple[Command, Any]:
    """The command that the words after `hf-video` name, and its settings; `argparse` exits after help. A `ValueError`
    says that there is no such flag, or what is wrong with a value."""
    parser = _Parser(
        prog="hf-video",
        usage="hf-video [-h] [--version] COMMAND ...",
        description="Train, evaluate and use video models with Hugging Face Transformers." + _list_commands(commands),
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hf-video {__version__}")
    added = parser.add_subparsers(prog=parser.prog, metavar="COMMAND", required=True, help=argparse.SUPPRESS)
    kind: Any = None
    words = [_with_hyphens(word) for word in argv]
    for command in commands:
        if words[:1] != [command.name]:
            added.add_parser(command.name)
            continue
        of_command = added.add_parser(
            command.name,
            description=command.description,
            epilog=command.epilog if isinstance(command.epilog, str) else command.epilog(),
            usage=command.usage,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        of_command.add_argument("--debug", dest="_", action="store_true", help="show the traceback of an error")
        of_command.set_defaults(_command=command, _parser=of_command)
        kind = _kind_of(command, of_command, words)
        words = _add_flags(of_command, kind, words)
    if kind is None:
        if words and not words[0].startswith("-"):
            hint = closest(_OTHER_NAMES.get(words[0], words[0]), [command.name for command in commands])
            parser.error(f"there is no command {words[0]!r}. {hint}".rstrip())
        parser.parse_args(words)  # the first word is no command: help, the version, or nothing
    args, rest = parser.parse_known_args(words)
    _refuse(rest, args, kind)
    return args._command, kind(**{name: value for name, value in vars(args).items() if not name.startswith("_")})


def _with_hyphens(word: str) -> str:
    """`--NAME_OF_FIELD=VALUE`, as in the scripts of Transformers, with the hyphens of our flags."""
    flag, equals, value = word.partition("=")
    return f"{flag.replace('_', '-')}{equals}{value}" if word.startswith("--") else word


def _list_commands(commands: Sequence[Command]) -> str:
    lines = [""]
    for group, listed in itertools.groupby(commands, lambda command: command.group):
        lines += ["", f"{group}:", *(f"  {command.name:<14}{command.help}" for command in listed)]
    return "\n".join(lines)


def _kind_of(command: Command, parser: argparse.ArgumentParser, argv: Sequence[str]) -> Any:
    """The settings of the task that `--task` names, or a line in the recipe."""
    tasks = command.tasks()
    if not tasks:
        return command.settings
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for added in (first, parser):
        kinds = list(tasks.values())
        names = [name for number, name in enumerate(tasks) if kinds[number] not in kinds[:number]]
        help = f"what is learned: {', '.join(names)}; each task has its own settings"
        added.add_argument("--task", dest="_task", metavar="TASK", help=help)
    first.add_argument("--recipe")
    words, _ = first.parse_known_args(argv)
    task = words._task
    if task is None and words.recipe is not None:
        from hf_video.training.recipes import read_recipe

        task = read_recipe(words.recipe).get("task")
    if task is not None and task not in tasks:
        raise ValueError(f"--task is {task!r}. Known are {', '.join(tasks)}.")
    return command.settings if task is None else tasks[task]


def _add_flags(parser: argparse.ArgumentParser, kind: Any, argv: Sequence[str]) -> list[str]:
    """Declares the settings of a command, and gives the words with each optional value bound to its flag."""
    known, groups = settings_of(kind), groups_of(kind)
    listed_names, shows_all = _listed_names(known, argv), "--help-all" in argv
    if len(listed_names) < len(known):
        parser.add_argument("--help-all", action="help", help="list every setting and exit")
    if "training_arguments" in known:
        # The beginning of a flag may stand for another one when all are declared.
        parser.allow_abbrev = False
        named = {word[2:].partition("=")[0].removeprefix("no-").replace("-", "_") for word in argv if word[:2] == "--"}
        declared = {name for each in known.values() for name in (each.name, each.alias)}
        if shows_all or (named - declared) & {*training_argument_names()}:
            # `--debug` shows tracebacks.
            left_out = (*known, *kind.no_effect, *OTHER_FLAGS, "debug")
            fields = [each for name, each in training_argument_fields().items() if name not in left_out]
            groups["Other fields of transformers.TrainingArguments"] = fields
    for title, listed in groups.items():
        group = parser.add_argument_group(title)
        for each in listed:
            if each.name != "training_arguments":
                # A recipe may give a value and switch something on.
                is_listed = shows_all or each.name in listed_names
                _add(parser if each.form in _WITHOUT_FLAG else group, each, "recipe" in known, is_listed)
    return _bind(argv, [each for listed in groups.values() for each in listed], "recipe" in known)


def _listed_names(known: dict[str, Setting], argv: Sequence[str]) -> list[str]:
    """The settings that `--help` lists: the common ones where some are marked so, and none of another task."""
    has_common = any(each.common for each in known.values() if each.form not in _WITHOUT_FLAG)
    first = _Parser(prog=argv[0], add_help=False, allow_abbrev=False)
    first.add_argument("--task", default=known["task"].default if "task" in known else None)
    task = first.parse_known_args(argv)[0].task
    here = {name: each for name, each in known.items() if not each.tasks or task in each.tasks}
    return [name for name, each in here.items() if each.common or not has_common]


def _add(group: Any, each: Setting, has_recipe: bool, is_listed: bool) -> None:
    """Declares a setting to `argparse`."""
    default = each.describe_default()
    text = (each.help + (f" (default: {default})" if default else "")).replace("%", "%%")
    options: dict[str, Any] = {"action": _Read, "setting": each, "metavar": each.placeholder}
    options["help"] = text if is_listed else argparse.SUPPRESS
    if each.form in _WITHOUT_FLAG:
        optional = "?" if each.default is not MISSING else None
        nargs = {"word": optional, "words": "+", "rest": argparse.REMAINDER}[each.form]
        group.add_argument(each.name, nargs=nargs, **options)
        return
    flags = [f"--{name.replace('_', '-')}" for name in (each.name, each.alias) if name]
    if each.is_switch:
        options |= {"nargs": 0, "metavar": None}
        flags += [f"--no-{flag[2:]}" for flag in flags] if has_recipe else []
    elif each.form == "several":
        options["nargs"] = "+"
    elif each.bare:
        options |= {"nargs": "?", "const": each.bare}
    group.add_argument(*flags, dest=each.name, required=each.default is MISSING, **options)


def _bind(argv: Sequence[str], declared: Sequence[Setting], has_recipe: bool) -> list[str]:
    """The words of a command line with `=` between an option that may have a value and this value: `argparse` would
    take any word behind it, as DATA in `--resume DATA`. A switch that may be off becomes `--NAME` or `--no-NAME`."""
    switches = {each.flag for each in declared if each.is_switch and has_recipe}
    optional = {each.flag: each for each in declared if each.bare and each.choices}
    words, bound = [*argv], []
    while words:
        word = words.pop(0)
        behind = ("true", "false") if word in switches else optional[word].choices if word in optional else ()
        if words and words[0] in behind:
            word += f"={words.pop(0)}"
        elif word in optional:
            word += f"={optional[word].bare}"
        flag, _, value = word.partition("=")
        if flag in switches and value in ("true", "false"):
            word = flag if value == "true" else f"--no-{flag[2:]}"
        bound.append(word)
    return bound


def _refuse(rest: Sequence[str], args: argparse.Namespace, kind: Any) -> None:
    """Refuses words that are no settings. The error has the flag that is closest."""
    parser, takes_fields = args._parser, "training_arguments" in settings_of(kind)
    for name in (word.partition("=")[0] for word in rest if word.startswith("--")):
        plain = name[2:].replace("-", "_")
        if takes_fields and plain in (*OTHER_FLAGS, *kind.no_effect):
            find_setting(kind, plain)
        for task, other in args._command.tasks().items():
            if plain in settings_of(other):
                raise ValueError(f"{name} has no effect here, but with --task {task}: leave it out.")
        fields = [f"--{each.replace('_', '-')}" for each in training_argument_names()] if takes_fields else []
        hint = closest(name, [*parser._option_string_actions, *fields])
        raise ValueError(f"{parser.prog} has no option {name}. {hint or f'`{parser.prog} --help` lists them.'}")
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
