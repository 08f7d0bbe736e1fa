"""What MkDocs cannot do by itself: the pages read well on GitHub, and the site is built from the same files.

A link out of `docs/` leads to the repository. `<!-- include: FILE#SECTION -->` stands for a section of another file.
A notebook becomes a page, each released model has its card, and so do the settings of each command.
"""

import base64
import importlib
import json
import logging
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

sys.path.append(str(Path(__file__).parent))

from settings_pages import settings_pages  # noqa: E402

# PyTorch warns of how torchao, which Transformers imports, registers its types.
logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[)#])")
INCLUDE = re.compile(r"^<!-- include: ([^#\s]+)#(\S+) -->$", re.MULTILINE)
CARDS = "cards/index.md"
FENCE = re.compile(r"^(```+).*?^\1$", re.MULTILINE | re.DOTALL)
# MkDocs counts warnings of its own loggers; with `strict` they are errors.
log = logging.getLogger("mkdocs.hooks")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages of settings first in the reference."""
    pages = [f"settings/{name}.md" for name in settings_pages()]
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    reference.insert(0, {"Settings": pages})
    return config


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))

    def include(match: re.Match[str]) -> str:
        return section((ROOT / folder / match[1]).resolve(), match[2])

    def lead(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, match[1]))
        if path == "model_cards/README.md":
            return CARDS
        if path.startswith("docs/"):
            return match[1].replace(".ipynb", ".md")
        if not (ROOT / path).exists():
            log.warning("%s links to %s, which the repository does not have.", page.file.src_uri, path)
        return f"{config.repo_url}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"

    return LINK.sub(lead, INCLUDE.sub(include, markdown))


def on_post_page(output: str, **more: Any) -> str:
    """What the theme does not do: a name of the search dialog and no empty headers of tables, as axe asks for; and the
    link to the repository asks GitHub for nothing before it is clicked."""
    changes = {'role="dialog"': 'role="dialog" aria-label="Search"', "<th></th>": "<td></td>"}
    changes |= {' data-md-component="source"': ""}
    for before, after in changes.items():
        output = output.replace(before, after)
    return output


def on_post_template(output_content: str, **more: Any) -> str:
    """The page for addresses that are not there, too."""
    return on_post_page(output_content)


def section(path: Path, anchor: str) -> str:
    """The lines under a heading of a Markdown file, up to the next heading of its level.

    Raises:
        ValueError: no heading has this anchor.
    """
    text = path.read_text(encoding="utf-8")
    code = [match.span() for match in FENCE.finditer(text)]
    headings = [
        match
        for match in re.finditer(r"^(#+) (.+)\n", text, re.MULTILINE)
        if not any(start < match.start() < end for start, end in code)
    ]
    for number, heading in enumerate(headings):
        if slugify(case="lower")(heading[2], "-") == anchor:
            later = (each.start() for each in headings[number + 1 :] if len(each[1]) <= len(heading[1]))
            return text[heading.end() : next(later, len(text))].strip()
    raise ValueError(f"{path} has no heading with the anchor {anchor!r}.")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        name = posixpath.splitext(notebook.src_uri)[0]
        cells = json.loads(notebook.content_string)["cells"]
        text, pictures = notebook_page(cells, posixpath.basename(name))
        files.append(File.generated(config, f"{name}.md", content=text))
        for picture, content in pictures.items():
            path = posixpath.join(posixpath.dirname(name), picture)
            files.append(File.generated(config, path, content=content))
    for path, text in model_cards().items():
        uri = posixpath.join(posixpath.dirname(CARDS), path)
        files.append(File.generated(config, uri, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    for name, text in settings_pages().items():
        files.append(File.generated(config, f"settings/{name}.md", content=text))
    return files


def model_cards() -> dict[str, str]:
    """The cards of the released models and their table of contents, by path; they are rendered from facts."""
    sys.path.insert(0, str(ROOT / "model_cards"))
    generate = importlib.import_module("generate")
    return generate.render_all(generate.read_released())


def notebook_page(cells: list[dict], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and its pictures by the name of their file."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in cells:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}_{len(pictures)}.png"
                pictures[picture] = base64.b64decode(data["image/png"])
                parts.append(f"![what the cell above draws]({picture})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                # What a cell prints may have fences of its own.
                parts.append(f"````text\n{text}\n````")
    return "\n\n".join(parts) + "\n", pictures
