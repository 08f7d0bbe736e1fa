"""Random recipes and flags are read, or refused by an error that names the setting."""

import functools
import math
import tempfile
import typing
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_video.settings import Expected, settings_of
from hf_video.training import PretrainSettings, TrainAnswersSettings, TrainSettings
from hf_video.training.resuming import START, choose_values
from hf_video.training.resuming import values_of as chosen_values
from tests.cli.flags import flags_of
from tests.cli.flags import read as read_words

QUICK = settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=[*HealthCheck])
THOROUGH = settings(QUICK, max_examples=3000, derandomize=False)
COMMANDS = {"train": TrainSettings, "pretrain": PretrainSettings, "train-answers": TrainAnswersSettings}
PLACES = {"data": "videos", "output_dir": "out", "model": "some/model"}
# The settings that a recipe may have, by command.
DECLARED = {
    command: {name: each for name, each in settings_of(kind).items() if name not in START}
    for command, kind in COMMANDS.items()
}
# What YAML can hold in place of a value.
JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-10, 10),
        st.floats(),
        st.sampled_from(["nan", "inf", "-1", "1e400", "yes", "nonsense", "[", "{}", "a=b", "\N{SNOWMAN}", " "]),
        st.text(max_size=5),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


def parts_of(hint):
    """The types of a union without None, and the marks beside them."""
    if typing.get_origin(hint) is typing.Annotated:
        inner, marks = parts_of(typing.get_args(hint)[0])
        return inner, [*marks, *hint.__metadata__]
    if typing.get_origin(hint) in (typing.Union, type(int | str)):
        found = [parts_of(each) for each in typing.get_args(hint)]
        return [kind for kinds, _ in found for kind in kinds], [mark for _, marks in found for mark in marks]
    return ([] if hint is type(None) else [hint]), []


def bounds_of(marks):
    """The least and the largest number, just inside of open bounds."""
    low, high = -5, 9
    for mark in marks:
        low = mark.ge if isinstance(mark, Ge) else mark.gt + 1e-3 if isinstance(mark, Gt) else low
        high = mark.le if isinstance(mark, Le) else mark.lt - 1e-3 if isinstance(mark, Lt) else high
    return low, high


def values_of(setting):
    """Values that the declaration of a setting allows."""
    kinds, marks = parts_of(setting.type)
    expected = next((mark for mark in marks if isinstance(mark, Expected)), None)
    if expected is not None:
        return st.sampled_from(expected.choices) if expected.choices else None
    low, high = bounds_of(marks)
    if bool in kinds:
        return st.booleans()
    if float in kinds:
        return st.floats(low, high) | st.integers(math.ceil(low), max(math.floor(high), math.ceil(low))).filter(
            lambda number: low <= number <= high
        )
    if int in kinds:
        return st.integers(math.ceil(low), math.floor(high))
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            return st.sampled_from(typing.get_args(kind))
    return None


def wrong_values_of(setting):
    """Values that the declaration does not allow, as they stand in a recipe."""
    kinds, marks = parts_of(setting.type)
    low, high = bounds_of(marks)
    if any(isinstance(mark, Expected) and mark.choices for mark in marks):
        return ["nonsense", [1], {"a": 1}]
    if {int, float} & set(kinds) and str not in kinds:
        bounded = [mark for mark in marks if isinstance(mark, Ge | Gt | Le | Lt)]
        below = [low - 1] if any(isinstance(mark, Ge | Gt) for mark in bounded) else []
        above = [high + 1] if any(isinstance(mark, Le | Lt) for mark in bounded) else []
        parts = [] if float in kinds else [1.5]
        return ["nonsense", math.nan, math.inf, "nan", [1], {"a": 1}, *below, *above, *parts]
    if kinds == [bool]:
        return ["nonsense", 2, [1], {"a": 1}]
    return ["nonsense"] if any(typing.get_origin(kind) is Literal for kind in kinds) else []


@functools.cache
def recipe_and_settings(command):
    """A folder with a recipe, and the settings of a command that reads it: to parse the words takes longest."""
    folder = tempfile.TemporaryDirectory()
    recipe = Path(folder.name) / "recipe.yaml"
    return folder, recipe, settings_with(command, recipe)


def settings_with(command, recipe, flags=()):
    places = [f"--{name.replace('_', '-')}={value}" for name, value in PLACES.items() if name != "data"]
    return read_words([command, PLACES["data"], f"--recipe={recipe}", *places, *flags])


def read(command, recipe_settings, flags=()):
    """What the command makes of a recipe with these settings, and of flags after it."""
    _, recipe, plain = recipe_and_settings(command)
    recipe.write_text(yaml.safe_dump(recipe_settings, allow_unicode=True))
    return chosen_values(choose_values(settings_with(command, recipe, flags) if flags else plain))


def recipes_of(command):
    """Recipes of allowed values, some of them under an alias."""
    declared = {name: each for name, each in DECLARED[command].items() if name not in PLACES}
    declared.pop("learning_rate", None)  # `base_learning_rate` excludes it.
    chosen = {name: strategy for name, each in declared.items() if (strategy := values_of(each)) is not None}
    return st.fixed_dictionaries({}, optional=chosen)


def check_valid(command, values):
    found = read(command, values)
    assert {name: found[name] for name in values} == values
    # A flag does what a line does.
    assert read(command, {"seed": 3}, flags_of(values)) | {"seed": 0} == found | {"seed": 0}


def check_junk(command, name, value):
    """A recipe with something in place of a value, or of a name, is read or named."""
    try:
        read(command, {name: value})
    except ValueError as error:
        assert name in str(error) or repr(name) in str(error) or "YAML" in str(error), f"{name!r}: {value!r}: {error}"


def names_of(command):
    letters = st.characters(min_codepoint=33, max_codepoint=126)
    return st.sampled_from(sorted(DECLARED[command])) | st.text(letters, max_size=8)


@pytest.mark.parametrize("command", COMMANDS)
def test_valid_recipes_are_read(command):
    QUICK(given(recipes_of(command))(lambda values: check_valid(command, values)))()


@pytest.mark.parametrize("command", COMMANDS)
def test_wrong_values_are_named(command):
    for name, setting in DECLARED[command].items():
        for value in wrong_values_of(setting):
            with pytest.raises(ValueError) as error:
                read(command, {name: value})
            assert name in str(error.value), f"{name}: {value}: {error.value}"


@pytest.mark.parametrize("command", COMMANDS)
def test_whatever_stands_in_a_recipe_is_read_or_named(command):
    QUICK(given(names_of(command), JUNK)(lambda name, value: check_junk(command, name, value)))()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("command", COMMANDS)
def test_thousands_of_recipes(command, capsys):
    counts: Counter[str] = Counter()

    def valid(values):
        check_valid(command, values)
        counts["valid"] += 1

    def junk(name, value):
        check_junk(command, name, value)
        counts["of any values"] += 1

    THOROUGH(given(recipes_of(command))(valid))()
    THOROUGH(given(names_of(command), JUNK)(junk))()
    with capsys.disabled():
        print(f"\n{counts.total()} recipes of {command}: {dict(counts)}")
    assert counts.total() >= THOROUGH.max_examples
