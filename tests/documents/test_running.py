"""The runner of documents tells what works from what does not."""

import os
import re

import pytest

from .blocks import LANGUAGES, MARKS, ROOT, commands, pages, read_blocks
from .checking import check, check_shell, simple_commands
from .run import INSTALLING
from .running import Shell, remove_outputs, run_blocks

PAGE = """
A sentence.

```bash
export WORD=kept   # a comment
mkdir folder && cd folder
test "$WORD" = kept -a -f file.txt \\
    -a "$(basename "$PWD")" = folder
```

```python
import os

number = len(os.listdir())
```

- An item:

  ```python
  assert number == 1 and at_hand == 2
  ```

<!-- cluster -->
```bash
hf-video train my_videos --output-dir my_model
```

```text
anything
```
"""


@pytest.fixture
def outcomes(tmp_path):
    """Runs a page in a folder with one file."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "file.txt").write_text("")

    def run(text, unrun={}):  # noqa: B006
        shell = Shell(tmp_path / "page", tmp_path / "files", os.environ, unrun, "at_hand = 2")
        try:
            return list(run_blocks(read_blocks("page.md", text), shell))
        finally:
            shell.close()

    return run


def test_a_page_runs_in_one_shell_and_one_interpreter(outcomes):
    found = outcomes(PAGE)
    assert [(each.status, each.line) for each in found] == [
        *[("ok", 5), ("ok", 6), ("ok", 7), ("ok", 12), ("ok", 20), ("parsed", 25), ("parsed", 29)],
    ], [each.said for each in found]


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("```bash\nls nowhere\n```\n", "nowhere"),
        ("```bash\nfalse | cat\n```\n", ""),
        ("```python\nassert 1 == 2\n```\n", "AssertionError"),
        ("```python\nimport os; os._exit(0)\n```\n", "ended"),
        ("<!-- gpu -->\n```python\nnumber =\n```\n", "invalid syntax"),
        ("<!-- data -->\n```bash\nhf-video train my_videos --output-dir my_model --epocs 3\n```\n", "--epocs"),
        ("```yaml\na: b: c\n```\n", "mapping values"),
        ("```toml\na = \n```\n", "Invalid value"),
    ],
)
def test_what_does_not_work_is_told(outcomes, block, said):
    (found,) = outcomes(block)
    assert found.status == "failed" and said in found.said


def test_what_is_not_run_is_checked(outcomes):
    found = outcomes(
        "```bash\nmake lint\nmkdir a && cd a && make help\nmake nonsense\nls\n```\n", {"make ": "not run"}
    )
    assert [each.status for each in found] == ["not run", "not run", "failed", "ok"]
    assert found[2].said == "The Makefile has no target nonsense."


@pytest.mark.parametrize("command", ["pip install x", "git status && pip install x", "A=1 python -m pip install x"])
def test_nothing_is_installed_into_the_environment_of_the_tests(outcomes, command):
    (found,) = outcomes(f"```bash\n{command}\n```\n", INSTALLING)
    assert found.status == "parsed"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("hf-video nonsense", "invalid choice"),
        ("hf-video train my_videos --output-dir o --weight-decy 1", "weight-decy"),
        ("hf-video predict", "the following arguments are required"),
        ("hf-video convert nonsense a b", "no source 'nonsense'"),
        ("python -m conversion.videomae a b --nonsense", "--nonsense"),
        ("python -m conversion.nonsense a b", "no source 'nonsense'"),
        ("python -m hf_video.cli predict", "are required"),
        ("python -m nonsense", "no module nonsense"),
        ("python benchmarks/nonsense.py", "There is no"),
        ("python benchmarks/int8.py --nonsense", "has no option --nonsense"),
        ("torchrun --nonsense -m hf_video.cli predict", "nonsense"),
        ("torchrun -m hf_video.cli predict", "are required"),
        ("srun --nodes=2 torchrun -m hf_video.cli predict", "are required"),
        ("accelerate launch -m hf_video.cli predict", "are required"),
        ("accelerate launch --config_file=nonsense.yaml -m hf_video.cli env", "There is no nonsense.yaml"),
        ("pip install '.[nonsense]'", "no extra nonsense"),
        ("pip install hf-video-models", "from a clone"),
        ("ls && nonsense_of_nobody", "no program"),
        ("if true; then", "syntax error"),
    ],
)
def test_a_command_that_nobody_reads_is_refused(command, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        check_shell(command)


def test_commands_are_found_in_shell():
    text = 'A=1 B="$(ls)" first --flag "two words" < in > out && second | third; export X=1  # comment\n'
    assert simple_commands(text) == [["first", "--flag", "two words"], ["second"], ["third"], ["export", "X=1"]]
    (block,) = read_blocks("page.md", f"```bash\n{text}fourth \\\n  five\n```\n")
    assert [(each.line, each.text) for each in commands(block)] == [(2, text[:-1]), (3, "fourth \\\n  five")]


def test_an_example_finds_nothing_where_it_writes(tmp_path):
    for name in ("model", "features", "kept", "converted"):
        (tmp_path / name).mkdir()
    (tmp_path / "videos.parquet").write_text("")
    remove_outputs("hf-video extract model --output features && hf-video convert x y converted", tmp_path)
    remove_outputs("hf-video inspect d --output videos.parquet; hf-video train d --output-dir=model", tmp_path)
    remove_outputs("hf-video train d --output-dir kept --resume", tmp_path)
    remove_outputs("hf-video extract d --output=s3://bucket/kept", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("page", pages())
def test_every_block_is_one_that_the_runner_knows(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = read_blocks(page)
    assert len(blocks) == len(re.findall(r"^ *```", text, re.MULTILINE)) / 2
    for block in blocks:
        assert block.language in LANGUAGES and block.mark in (None, *MARKS), f"{page}:{block.line}"
        if not block.file:
            check(block)
        else:
            assert page == "CONTRIBUTING.md", "only these files are written by a test, test_contributing.py"


@pytest.mark.parametrize("page", [page for page in pages() if not page.startswith("docs/reference/")])
def test_all_code_is_in_fences(page):
    """Else the runner would not see it. Text that goes on after an item of a list is indented as well."""
    text = re.sub(r"^( *)```.*?^\1```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert not re.findall(r"^(?![ *-]|$).*\n\n( {4}\S.*)", text, re.MULTILINE)
