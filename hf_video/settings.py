"""How a setting is declared: one field of a dataclass, with its name, type, bounds, default and help.

    layer_decay: Common[Positive[float]] = setting(1.0, "Factor of the learning rate ...")

Flags, recipes, `--help`, what a resumed run holds fixed, and the reference pages are derived from that line. A class
of settings is composed of groups, which it inherits. `transformers.HfArgumentParser` reads the same classes.
"""

import dataclasses
import difflib
import enum
import functools
import importlib.util
import inspect
import json
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union

from annotated_types import Ge, Gt, Le, Lt

T = TypeVar("T")
# Fields of `transformers.TrainingArguments` that are not settings, and the flags that do the same.
OTHER_FLAGS = {
    "resume_from_checkpoint": "is set by the option --resume.",
    "use_cpu": "is set by the option --device.",
    "parallelism_config": "has no effect here: FSDP2 shards weights, see recipes/accelerate/fsdp2.yaml.",
}
AtLeast1 = Annotated[T, Ge(1)]
NotNegative = Annotated[T, Ge(0)]
Positive = Annotated[T, Gt(0)]
BelowOne = Annotated[T, Ge(0), Lt(1)]
Share = Annotated[T, Ge(0), Le(1)]
Seed = Annotated[T, Ge(0), Le(2**32 - 1)]


@dataclass(frozen=True)
class Expected:
    """A bound that `allows` checks and `text` describes."""

    text: str
    allows: Callable[[Any], bool]
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What is said of a setting beside its type in `Annotated`. Of several marks the last one counts.

    Attributes:
        alias: a shorter name; it counts for nothing where another setting has this name.
        from_scratch: the default for a model from scratch; None if it is the same.
        from_start: the default for the bundled model; None if it is the same.
        needs: another setting, without which this one has no effect, or such a setting and its values: "loss=focal",
            "task=retrieval or segments".
        changeable: whether a resumed run may have another value.
        common: whether `--help` lists it where a command has many settings.
        form: where its value stands on a command line: behind a flag; behind one that may be given several times, or
            that has several words; or without a flag, as one word, as several, or as the rest of the line.
        bare: the value of the flag without a word behind it.
        names: what its value names. A command refuses one that is not there before PyTorch is imported.
    """

    alias: str | None = None
    from_scratch: Any = None
    from_start: Any = None
    needs: str | None = None
    changeable: bool = False
    common: bool = False
    form: Literal["flag", "flags", "several", "word", "words", "rest"] = "flag"
    bare: str | None = None
    names: Literal["videos", "model"] | None = None


COMMON, CHANGEABLE = Mark(common=True), Mark(changeable=True)
Common = Annotated[T, COMMON]
Changeable = Annotated[T, CHANGEABLE]


@dataclass(frozen=True, kw_only=True)
class Setting(Mark):
    """A declared setting.

    Attributes:
        name: its name; its flag has dashes in place of underscores.
        type: its type with bounds.
        default: the default; MISSING if it must be given.
        help: a sentence that says what the setting does.
        metavar: the placeholder of the value in `--help`, such as "DIR"; by default the type decides.
    """

    name: str
    type: Any = None
    default: Any = None
    help: str = ""
    metavar: str | None = None

    @property
    def is_switch(self) -> bool:
        """Whether its flag needs no value."""
        return _members(self.type) == {bool}

    @property
    def choices(self) -> list[str]:
        """All values if they can be listed, otherwise nothing."""
        return _choices(self.type)

    @property
    def placeholder(self) -> str:
        """The placeholder of its value in `--help`."""
        members = _members(self.type)
        listed = f"{{{','.join(self.choices)}}}" if self.choices else ""
        return self.metavar or listed or ("N" if int in members else "X" if float in members else "TEXT")

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def tasks(self) -> list[str]:
        """The tasks with which alone it acts; empty if it acts with all."""
        needed, _, wanted = (self.needs or "").partition("=")
        return wanted.split(" or ") if needed == "task" else []

    def spell(self, value: Any) -> str:
        """The words that give it a value, such as "--epochs 3"."""
        if isinstance(value, bool):
            return self.flag if value else f"--no-{self.flag[2:]}"
        return f"{self.flag} {_as_text(value)}".rstrip()

    def describe_default(self) -> str:
        """The default as `--help` shows it; "" if there is none, or if the text of the help states it."""
        words = _as_text(self.default)
        ways = {"from scratch": self.from_scratch, "with the bundled model": self.from_start}
        if others := [f"{_as_text(value)} {way}" for way, value in ways.items() if value is not None]:
            return "; ".join([words or ("none" if self.from_scratch is None else "as the model"), *others])
        return words.replace(",", " ") if self.form == "several" else words


def setting(default: Any = MISSING, help: str = "", metavar: str | None = None) -> Any:
    """A field of a dataclass of settings; a list or mapping is copied. Its marks stand in `Annotated`, because
    `HfArgumentParser` hands all metadata to `argparse`."""
    metadata = {"help": help} | ({} if metavar is None else {"metavar": metavar})
    if isinstance(default, list | dict):
        return field(default_factory=functools.partial(type(default), default), metadata=metadata)
    return field(default=default, metadata=metadata)


def with_defaults(**changes: Any) -> Callable[[type[T]], type[T]]:
    """A decorator, below `@dataclass`, that changes inherited settings: their defaults, or by a `Mark` what is said of
    them."""

    def change(kind: type[T]) -> type[T]:
        annotations = inspect.get_annotations(kind)
        fields = [vars(base).get("__dataclass_fields__", {}) for base in reversed(kind.__mro__[1:])]
        known = dict(each for declared in fields for each in declared.items())
        for name, given in changes.items():
            inherited = known[name]
            is_mark = isinstance(given, Mark)
            annotations[name] = Annotated[inherited.type, given] if is_mark else inherited.type
            setattr(kind, name, setting(_default_of(inherited) if is_mark else given, **inherited.metadata))
        kind.__annotations__ = annotations
        return kind

    return change


class _Read(type):
    """Reads the values that settings are made with."""

    def __call__(cls, **values: Any) -> Any:
        fields = values.pop("training_arguments", {})
        read = read_values(cls, values | fields)
        own = {name: value for name, value in read.items() if name in settings_of(cls)}
        others = {name: value for name, value in read.items() if name not in own}
        settings = super().__call__(**own, **({"training_arguments": others} if others else {}))
        settings.given = tuple(read)
        return settings


class Settings(metaclass=_Read):
    """What a command and the function behind it take: a base of keyword-only dataclasses. Where it has the setting
    `training_arguments`, every field of `transformers.TrainingArguments` is a keyword, too.

    Raises:
        ValueError: there is no setting of a name, or a value is not of its type, or out of its bounds.
    """

    no_effect: ClassVar[Collection[str]] = ()
    """Fields of `transformers.TrainingArguments` that have no effect here, and are refused."""
    given: Collection[str]
    """Names of the settings that were given a value, in their order."""


def settings_of(kind: Any) -> dict[str, Setting]:
    """The settings that a dataclass declares, by name."""
    return _declared(kind)


@functools.cache
def _declared(kind: Any) -> dict[str, Setting]:
    hints, found = typing.get_type_hints(kind, include_extras=True), {}
    for each in dataclasses.fields(kind):
        if each.init:
            marks = [vars(mark).items() for mark in _marks(hints[each.name]) if isinstance(mark, Mark)]
            said = {name: value for mark in marks for name, value in mark if value != getattr(Mark, name)}
            if said.get("alias") in hints:
                del said["alias"]
            options = {"type": hints[each.name], "default": _default_of(each), **each.metadata, **said}
            found[each.name] = Setting(name=each.name, **options)
    return found


@functools.cache
def training_argument_names() -> list[str]:
    """The names of all fields of `transformers.TrainingArguments`, read from its source: importing it takes long."""
    package = importlib.util.find_spec("transformers")
    source = Path(str(package and package.origin)).with_name("training_args.py").read_text(encoding="utf-8")
    return re.findall(r"^    (\w+): .*= field\(", source, re.MULTILINE)


@functools.cache
def training_argument_fields() -> dict[str, Setting]:
    """All fields of `transformers.TrainingArguments`, by name."""
    from pydantic import Field
    from transformers import TrainingArguments

    hints, found = typing.get_type_hints(TrainingArguments), {}
    for each in dataclasses.fields(TrainingArguments):
        if each.init:
            hint, options = hints[each.name], {"help": each.metadata.get("help", "").partition(". ")[0]}
            kinds: list[Any] = [kind for kind in _members(hint) if isinstance(kind, enum.EnumMeta)]
            if choices := each.metadata.get("choices") or [str(one.value) for kind in kinds for one in kind]:
                hint = Literal[*choices] | None
            elif _members(hint) == {bool, str}:  # of both, "true" is the boolean
                hint, options["bare"] = Annotated[bool | str, Field(union_mode="left_to_right")], "true"
            found[each.name] = Setting(name=each.name, type=hint, default=_default_of(each), **options)
    return found


def _default_of(declared: dataclasses.Field) -> Any:
    factory: Any = declared.default_factory
    return declared.default if factory is MISSING else factory()


def find_setting(kind: Any, name: str) -> Setting:
    """A setting by its name or alias, or a field of `TrainingArguments` where `kind` takes these. A `ValueError` says
    that there is no such setting, and names a similar one, or that it has no effect."""
    known = settings_of(kind)
    others = training_argument_names() if "training_arguments" in known else []
    if name in OTHER_FLAGS and others:
        raise ValueError(f"{name} {OTHER_FLAGS[name]}")
    for each in known.values():
        if name in (each.name, each.alias):
            return each
    if name in getattr(kind, "no_effect", ()):
        raise ValueError(f"{name} has no effect here: leave it out.")
    if name not in others:
        hint = closest(name, [*known, *(each.alias for each in known.values() if each.alias), *others])
        raise ValueError(f"{name!r} is not a setting. {hint or '`hf-video COMMAND --help` lists them.'}")
    return training_argument_fields()[name]


def read_values(kind: Any, given: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Values or texts that are given by names or aliases of settings: by full names, each of the type of its setting.
    A `ValueError`, which begins with `where`, such as a file, says that there is no such setting, that it is given
    twice, or that its value is wrong."""
    values: dict[str, Any] = {}
    for name, value in given.items():
        try:
            found = find_setting(kind, name)
        except ValueError as error:
            raise ValueError(f"{where}{error}") from error
        if found.name in values:
            raise ValueError(f"{where}{found.name} is given twice, once as {name}. Keep one of them.")
        values[found.name] = read_value(found.type, value, f"{where}{name}")
    return values


def groups_of(kind: Any) -> dict[str, list[Setting]]:
    """The settings under titles, in the order of the bases: the first line of the docstring of the class that declares
    a setting first."""
    known, groups = settings_of(kind), dict[str, list[Setting]]()
    classes: list[Any] = [base for base in kind.__mro__ if dataclasses.is_dataclass(base)]
    declared = {base: inspect.get_annotations(base) for base in classes}
    owners = {name: base for base, names in declared.items() for name in names}
    for base, names in declared.items():
        listed = groups.setdefault(str(base.__doc__).partition("\n")[0], [])
        listed += [known[name] for name in names if name in known and owners[name] is base]
    return {title: listed for title, listed in groups.items() if listed}


def read_value(hint: Any, value: Any, name: str) -> Any:
    """A value, or a text from the command line or a YAML file, as the type with bounds `hint`; commas separate the
    items of a list. A `ValueError` names the setting as the user wrote it, the value, and what is expected."""
    from pydantic import ValidationError

    read = os.fspath(value) if isinstance(value, os.PathLike) else value
    try:
        if isinstance(value, str) and (list in _origins(hint) and str not in _members(hint)):
            read = [part for part in value.split(",") if part]
        read = _adapter(hint).validate_python(read)
        if any(isinstance(mark, Expected) and not mark.allows(read) for mark in _marks(hint) if read is not None):
            raise ValueError
    except (ValidationError, ValueError):
        shown = repr(value) if isinstance(value, str) and not re.fullmatch(r"[-+.\de]+", value) else value
        raise ValueError(f"{name} is {shown}; {describe_type(hint)} is expected.") from None
    return read


def check_values(settings: Any, kind: type) -> None:
    """Refuses (`ValueError`) a number out of its bounds, and a setting that has no effect without another one. The
    object has an attribute for each setting that the dataclass `kind` declares."""
    for name, each in settings_of(kind).items():
        value = getattr(settings, name)
        # Other values are checked where they are used. With DeepSpeed a number may be "auto".
        if isinstance(value, int | float) and _members(each.type) & {int, float}:
            read_value(each.type, value, name)
        if value != each.default and each.needs:
            needed, _, wanted = each.needs.partition("=")
            found = getattr(settings, needed)
            if not (found in wanted.split(" or ") if wanted else found):
                raise ValueError(f"{name} is {value}, which has no effect without {each.needs}.")


def few(names: Iterable[object], limit: int = 3) -> str:
    """The first names for a message, with dots if there are more: `a, b, c, ...`."""
    first = list(islice(names, limit + 1))
    return ", ".join(map(str, first[:limit])) + (", ..." if len(first) > limit else "")


def closest(name: str, known: Iterable[str]) -> str:
    """A sentence that asks for the shortest of some names that begin with `name`, or else the most alike; "" if there
    is none."""
    plain = {each.lstrip("-"): each for each in known}
    name = name.lstrip("-")
    begun = sorted((each for each in plain if name and each.startswith(name)), key=len)
    close = begun or difflib.get_close_matches(name, plain, n=1)
    return f"Did you mean {plain[close[0]]}?" if close else ""


def describe_type(hint: Any) -> str:
    """The values that a type with bounds allows, in words, such as "a whole number of at least 1"."""
    marks, members = _marks(hint), _members(hint)
    if texts := [mark.text for mark in marks if isinstance(mark, Expected)]:
        return texts[0]
    if choices := _choices(hint):
        return " or ".join(part for part in (", ".join(choices[:-1]), choices[-1]) if part)
    if members & {int, float}:
        words = {"ge": "of at least", "gt": "above", "le": "up to", "lt": "below"}
        bounds = [f"{words[name]} {getattr(mark, name)}" for name in words for mark in marks if hasattr(mark, name)]
        return " ".join(["a whole number" if int in members else "a number", " and ".join(bounds)]).rstrip()
    if bool in members:
        return "true or false"
    if dict in _origins(hint):
        return "a mapping"
    return "a list of words" if list in _origins(hint) and str not in members else "a text"


def _choices(hint: Any) -> list[str]:
    marks = [mark.choices for mark in _marks(hint) if isinstance(mark, Expected)]
    literals = [typing.get_args(member) for member in _members(hint) if typing.get_origin(member) is Literal]
    return next(([str(choice) for choice in choices] for choices in (*marks, *literals) if choices), [])


def _marks(hint: Any) -> list[Any]:
    """The marks beside a type in `Annotated`, also those inside of a union."""
    inner = [mark for part in _parts(hint) if part is not hint for mark in _marks(part)]
    return [*inner, *getattr(hint, "__metadata__", ())]


def _members(hint: Any) -> set[Any]:
    """The types of a union without None, or the type itself, all without marks."""
    parts = _parts(hint)
    return {*parts} - {type(None)} if parts == [hint] else {member for part in parts for member in _members(part)}


def _parts(hint: Any) -> list[Any]:
    """The type inside of `Annotated`, the types of a union, or the type itself."""
    if typing.get_origin(hint) is Annotated:
        return [typing.get_args(hint)[0]]
    return [*typing.get_args(hint)] if typing.get_origin(hint) in (Union, types.UnionType) else [hint]


def _origins(hint: Any) -> set[Any]:
    return {typing.get_origin(member) or member for member in _members(hint)}


@functools.cache
def _adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # The types of some fields of TrainingArguments are classes of accelerate, which no word can name.
    return TypeAdapter(hint, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))


def _as_text(value: Any) -> str:
    """A value as the user writes it behind a flag."""
    if value is None or value is MISSING:
        return ""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value) if isinstance(value, bool | dict) else str(value)
