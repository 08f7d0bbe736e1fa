"""axe-core finds nothing on the pages of the site, in a light and in a dark room."""

import functools
import os
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from .blocks import ROOT

pytestmark = pytest.mark.extras
AXE = Path(os.environ.get("AXE_CORE", ROOT / ".venv" / "axe-core" / "package" / "axe.min.js"))


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address(site):
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser():
    pytest.importorskip("playwright", reason="playwright is missing: pip install '.[test-extras]'")
    from ..app.chromium import find_chromium, start_chromium

    if find_chromium() is None:
        pytest.skip("there is no browser: apt-get install chromium, or name one with CHROME_BIN=/path/to/it")
    if not AXE.is_file():
        pytest.skip(f"axe-core is missing: make test-extras gets it with npm; or name it with AXE_CORE, not {AXE}")
    with start_chromium() as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser, address, site, scheme):
    found = {}
    requested = set()
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    # The reference has one page here for all: they are long, and alike.
    names = sorted(path.parent.relative_to(site).as_posix() for path in site.rglob("index.html"))
    names = [name for name in names if not name.startswith("reference/") or name == "reference/data"]
    assert {".", "use", "fine_tune", "notebooks/first_steps", "settings"} < set(names)
    for name in names:
        page = context.new_page()
        page.on("request", lambda request: requested.add(request.url))
        page.goto(f"{address}{name}/")
        page.wait_for_selector("[data-md-color-scheme]")
        assert (
            page.locator("body").get_attribute("data-md-color-scheme") == {"light": "default", "dark": "slate"}[scheme]
        )
        page.add_script_tag(path=AXE)
        result = page.evaluate("axe.run()")
        assert len(result["passes"]) > 10
        for violation in result["violations"]:
            places = [node["html"][:160] for node in violation["nodes"]]
            found[f"{name}: {violation['id']}: {violation['help']}"] = (len(places), places[:3])
        page.close()
    context.close()
    assert not found
    assert not [url for url in requested if not url.startswith((address, "data:"))]
