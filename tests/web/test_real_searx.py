"""`web_search` with a real search server: Searx, whose only engine is a server of the test."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SERVICES_FILE
from tests.web.conftest import OpenWeb, call
from tests.web.sites import Site

pytestmark = [pytest.mark.services, pytest.mark.may_skip]
START_SECONDS = 60
SETTINGS = """
import sys, yaml
example, written, port, engine = sys.argv[1:]
share = example.partition("/usr/share/")[0] + "/usr/share/python3-searx"
settings = yaml.safe_load(open(example))
settings["server"] |= {"port": int(port), "secret_key": "of the test"}
settings["ui"] |= {"static_path": share + "/static", "templates_path": share + "/templates"}
settings["engines"] = [{
    "name": "of the test", "engine": "json_engine", "shortcut": "t", "categories": "general", "timeout": 20,
    "enable_http": True, "search_url": engine + "/engine?q={query}", "results_query": "found", "url_query": "address",
    "title_query": "name", "content_query": "about",
}]
yaml.safe_dump(settings, open(written, "w"))
"""


@pytest.fixture
def searx(site: Site, tmp_path: Path) -> Iterator[str]:
    """The address of a Searx that asks the site."""
    lines = SERVICES_FILE.read_text().splitlines() if SERVICES_FILE.exists() else []
    found = [line.partition("=")[2] for line in lines if line.startswith("TOOLCRIB_TEST_SEARX=")]
    if not found:
        pytest.skip("no searx: run scripts/test-services up")
    folder = Path(shlex.split(found[0])[0])
    python, settings = str(folder / "python/bin/python"), str(tmp_path / "settings.yml")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    example = str(folder / "root/usr/share/doc/searx/examples/settings.yml")
    subprocess.run([python, "-c", SETTINGS, example, settings, str(port), site.address], check=True)
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(folder / "root/usr/lib/python3/dist-packages"),
        "SEARX_SETTINGS_PATH": settings,
    }
    log = (tmp_path / "searx.log").open("wb")
    server = subprocess.Popen([python, "-m", "searx.webapp"], env=environ, stdout=log, stderr=log)
    try:
        wait_for(f"http://127.0.0.1:{port}/", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
        log.close()


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            # Nothing to wait on: it says nowhere that it listens.
            time.sleep(0.1)
    raise AssertionError("searx does not start")


async def test_a_real_search_server_answers(
    searx: str, open_web: OpenWeb, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its JSON is understood: titles, addresses and snippets of its engine, in order, with the provider's name."""
    found = [{"name": f"Rope {n}", "address": f"https://rope{n}.example/", "about": f"Knots {n}"} for n in (1, 2, 3)]
    site.pages["/engine"] = (200, {"content-type": "application/json"}, json.dumps({"found": found}).encode())
    monkeypatch.setenv("SEARXNG_URL", searx)

    answer = await call(open_web(), "web_search", query="rope & knots", limit=2)

    assert answer["provider"] == "SearXNG"
    assert [(one["title"], one["url"], one["description"]) for one in answer["data"]["web"]] == [
        ("Rope 1", "https://rope1.example/", "Knots 1"),
        ("Rope 2", "https://rope2.example/", "Knots 2"),
    ]
    assert site.requests[-1].path == "/engine?q=rope+%26+knots"


async def test_a_real_search_server_without_results(
    searx: str, open_web: OpenWeb, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing found is an answer, not an error."""
    site.pages["/engine"] = (200, {"content-type": "application/json"}, b'{"found": []}')
    monkeypatch.setenv("SEARXNG_URL", searx)

    answer = await call(open_web(), "web_search", query="nothing of that name")

    assert answer["success"] is True
    assert answer["data"]["web"] == []
