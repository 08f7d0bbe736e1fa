"""Writes docs/conformance.md: which of Transformers' common tests our classes run, pass and skip, and why.

`make conformance` runs `python -m tests.transformers_common.conformance`. Every reason for which a test is skipped
must have an explanation in `EXPLANATIONS`: another one is an error, and the page is not written.
"""

import collections
import datetime
import importlib
import inspect
import re
import sys
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import transformers

from .distribution import PACKAGE

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
PAGE = ROOT / "docs" / "conformance.md"
# A reason of Transformers names the class that it is about.
CLASS_NAME = re.compile(
    r"(<class '[\w.]+'>|\b(VideoViT|VideoMamba|MemoryBankQFormer|VideoTextDualEncoder|STMixer)\w*)"
)

MACHINE, ABSENT, OURS = "the machine", "the architecture", "our choice"
EXPLANATIONS = {
    r"test requires (accelerator|multiple accelerators|MPS)": (MACHINE, "There is no GPU."),
    r"test requires (Flash Attention.*|the kernels library)": (MACHINE, "Kernels for GPUs, which are not installed."),
    r"test requires deepspeed": (MACHINE, "DeepSpeed is not installed; it needs a GPU."),
    r"test is slow": (MACHINE, "Transformers runs it with `RUN_SLOW=1`, on its own machines."),
    r"(Model architecture does not support|Model does not output) attentions|.* support output_attentions": (
        ABSENT,
        "VideoMamba has no attention.",
    ),
    r"Parts of this model don't support sdpa": (ABSENT, "VideoMamba has no attention."),
    r".*(RoPE|base_model_class).*": (
        ABSENT,
        "It is about the rotary positions of language models; VideoViT tests its own.",
    ),
    r".*(grouped_mm|sparse experts|output_router_logits).*": (ABSENT, "No mixture of experts."),
    r".*sliding window mask": (ABSENT, "Attention reaches every token."),
    r".*[Nn]ot (an encoder-decoder|a composite model|composite).*|No subconfigs.*": (
        ABSENT,
        "VideoViT and VideoMamba have one configuration without parts; no model is an encoder-decoder.",
    ),
    r"No (sequence-to-sequence|decoder-only) language modeling head to check": (
        ABSENT,
        "The language model is one of Transformers, and its loss is tested there.",
    ),
    r"Do not take a cache as input to forward": (
        ABSENT,
        "Encoders have no cache of keys and values, and that of the language model is used by `generate` alone.",
    ),
    r"This model doesn't use `inputs_embeds`": (ABSENT, "Pixels have no embeddings that a caller could give instead."),
    r"(the hidden states are those of the towers|CLASS does not propagate hidden states).*": (
        ABSENT,
        "`get_video_features` and `get_text_features` return them, and are tested.",
    ),
    r"the first output, the similarity, is not of the fusion layers": (
        ABSENT,
        "The test follows the gradient of the first output into every layer.",
    ),
    r"This model does not support setting its attention dynamically": (
        ABSENT,
        "STMixer's queries attend with a bias that no other implementation takes. Its backbone is tested.",
    ),
    r"CLASS not in MODEL_MAPPING": (ABSENT, "STMixer has no model without heads."),
    r"pixels have no vocabulary to resize": (ABSENT, "Pixels are projected, not looked up."),
    r"No conversion found for CLASS": (ABSENT, "Published weights have the names of the modules: none is renamed."),
    r"CLASS (class )?has no _keep_in_fp32_modules .*|No `_keep_in_fp32_modules_strict` defined": (
        ABSENT,
        "Every weight may be in half precision.",
    ),
    r"CLASS does not support SDPA": (
        ABSENT,
        "Two tests, of which one is for composite models and the other for all others.",
    ),
    r"Model does not have both a non-text modality tower and a language sub-model.*": (
        OURS,
        "The test looks for other names of parts. `test_attn_implementation_composite_models` runs, and looks at all.",
    ),
    r"Model does not have a TP plan.": (OURS, "Tensor parallelism is not supported: the models fit one GPU."),
    r"No validation found for `preprocess` method": (
        OURS,
        "The test looks for two older ways to check arguments, which `BaseVideoProcessor` does not have.",
    ),
    r"position embeddings follow the input's size.*": (
        OURS,
        "The test changes a length in tokens, which no configuration has. Other sizes are tested in `tests/models`.",
    ),
}


class Outcome(NamedTuple):
    """One test: the file and the class it is in, `passed`, `skipped` or `failed`, and the reason of a skip."""

    file: str
    test_class: str
    name: str
    outcome: str
    reason: str


class Collector:
    """A pytest plugin that keeps the outcome of every test. A subtest's counts with the test that it is a part of."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, *classes, name = report.nodeid.split("::")
        known = self.outcomes.get(report.nodeid)
        is_subtest = hasattr(report, "context")
        if not classes or (report.outcome == "passed" and (is_subtest or report.when != "call")):
            return
        reason = report.longrepr[2].removeprefix("Skipped: ") if report.outcome == "skipped" else ""
        order = ("passed", "skipped", "failed")
        if known is None or order.index(report.outcome) > order.index(known.outcome):
            self.outcomes[report.nodeid] = Outcome(Path(file).name, classes[0], name, report.outcome, reason)


def run() -> list[Outcome]:
    """Runs the common tests, side by side on all cores."""
    collector = Collector()
    files = dict.fromkeys(inspect.getfile(each) for each in test_classes())
    words = [*files, "--quiet", "--numprocesses", "logical", "-p", "no:cacheprovider", "-r", "fE"]
    code = pytest.main(words, plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {code!r}.")
    return sorted(collector.outcomes.values())


def test_classes() -> Iterator[type[unittest.TestCase]]:
    """The classes that subclass a mixin of Transformers, in the order of the files."""
    for path in sorted(FOLDER.glob("test_*.py")):
        module = importlib.import_module(f"{__package__}.{path.stem}")
        for member in vars(module).values():
            if (
                inspect.isclass(member)
                and issubclass(member, unittest.TestCase)
                and member.__module__ == module.__name__
            ):
                yield member


def tested_classes(test_class: type[unittest.TestCase]) -> list[str]:
    """The names of our classes that a class of tests is about."""
    classes = getattr(test_class, "all_model_classes", None) or (test_class.fast_video_processing_class,)
    return [each.__name__ for each in classes]


def names_of_tests(test_class: type[unittest.TestCase]) -> list[str]:
    """What pytest collects of the class."""
    return list(unittest.TestLoader().getTestCaseNames(test_class))


def own_tests(test_class: type[unittest.TestCase]) -> Iterator[tuple[str, str]]:
    """Each test of Transformers that is another one here, by name, with the sentence that says why.

    Raises:
        ValueError: a test says nothing.
    """
    for name in names_of_tests(test_class):
        definers = [each for each in test_class.__mro__ if name in vars(each)]
        function = getattr(test_class, name)
        is_ours = isinstance(function, types.FunctionType) and function.__module__.startswith("tests.")
        if not is_ours or not any(each.__module__.startswith(PACKAGE) for each in definers[1:]):
            continue
        why = getattr(function, "__unittest_skip_why__", "") or (function.__doc__ or "").strip().partition("\n")[0]
        if not why:
            raise ValueError(f"{test_class.__name__}.{name} replaces a test of Transformers and does not say why.")
        yield name, ("Left out: " * hasattr(function, "__unittest_skip_why__")) + why


def explain(reason: str) -> tuple[str, str]:
    """Whose a reason is, and the explanation.

    Raises:
        ValueError: the reason has none.
    """
    for pattern, explanation in EXPLANATIONS.items():
        if re.fullmatch(pattern, reason):
            return explanation
    raise ValueError(f"A common test is skipped with {reason!r}, which has no explanation in {Path(__file__).name}.")


def page(outcomes: list[Outcome], today: datetime.date) -> str:
    """The text of the page.

    Raises:
        ValueError: a skip or a replaced test is not explained.
    """
    by_class = collections.defaultdict(collections.Counter)
    skips: collections.Counter[tuple[str, str, str]] = collections.Counter()
    for each in outcomes:
        by_class[each.test_class][each.outcome] += 1
        if each.outcome == "skipped":
            reason = CLASS_NAME.sub("CLASS", each.reason)
            skips[*explain(reason), reason] += 1
    total = sum(by_class.values(), collections.Counter())
    rows = [f"| **all** | | {total.total()} | {total['passed']} | {total['skipped']} | {total['failed']} |"]
    replaced = collections.defaultdict(list)
    for test_class in test_classes():
        counts = by_class[test_class.__name__]
        names = ", ".join(f"`{name}`" for name in tested_classes(test_class))
        rows.append(
            f"| `{test_class.__name__}` | {names} | {counts.total()} | {counts['passed']} | {counts['skipped']} "
            f"| {counts['failed']} |"
        )
        for name, why in own_tests(test_class):
            replaced[name, why].append(test_class.__name__)
    reasons = [
        f"| {count} | {reason.replace('|', '/')} | {whose} | {text} |"
        for (whose, text, reason), count in sorted(skips.items(), key=lambda item: (item[0][0], -item[1], item[0]))
    ]
    own = [f"| `{name}` | {len(classes)} | {why} |" for (name, why), classes in sorted(replaced.items())]
    return TEXT.format(
        version=transformers.__version__,
        today=today.isoformat(),
        rows="\n".join(rows),
        reasons="\n".join(reasons),
        own="\n".join(own),
        machine=sum(count for (whose, *_), count in skips.items() if whose == MACHINE),
        absent=sum(count for (whose, *_), count in skips.items() if whose == ABSENT),
        ours=sum(count for (whose, *_), count in skips.items() if whose == OURS),
    )


TEXT = """\
# Conformance to Transformers

Every model in Transformers must pass the library's common tests: saving and loading, initial weights, precision,
gradient checkpointing, attention, hidden states, training, devices, and more. Our classes run the same tests, from the
source distribution of transformers {version}, in `make test`.

`make conformance` writes this page. It was written on {today}, on a machine without a GPU. A
test of several classes that is skipped for one of them counts as skipped.

| test class | classes of ours | tests | passed | skipped | failed |
|---|---|---:|---:|---:|---:|
{rows}

Two sets of Transformers' tests do not run here, because its source distribution leaves their files out: those of
`generate` and those of export. `MemoryBankQFormerForConditionalGeneration.generate` has tests of its own in
`tests/models/memory_bank_qformer`.

## Why tests are skipped

{machine} for what the machine lacks, {absent} for what the architecture does not have, {ours} for a choice of ours. A
reason that is not in this table is an error of `make conformance`. `CLASS` stands for the name of a class.

| tests | reason that the test gives | because of | explanation |
|---:|---|---|---|
{reasons}

## Tests that are other ones here

The test of Transformers is replaced by one of the same name in `tests/transformers_common`.

| test | test classes | why |
|---|---:|---|
{own}
"""


def main() -> int:
    outcomes = run()
    PAGE.write_text(page(outcomes, datetime.date.today()))
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return int(any(each.outcome == "failed" for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
