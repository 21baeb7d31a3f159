"""`search_files` through the whole pipeline: effects, limits of time, cancelling, what a model is told."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from toolcrib.core.types import Effect
from toolcrib.files.search import search_effects, search_files
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime

T = TypeVar("T")
CONFIG = "terminal: {login_shell: false}\n"
# Doubles with every letter for an engine that goes back and tries again.
SLOW_PATTERN, SLOW_TEXT = "(a|a)*b", "a" * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@pytest.fixture
def runtime(tmp_path: Path, folder: Path) -> Iterator[Runtime]:
    options: dict[str, Any] = {"registry": ToolRegistry(parent=default_registry), "workspace": folder}
    with isolated_runtime(tmp_path / "toolcrib", CONFIG, **options) as made:
        yield made


def call(runtime: Runtime, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(str(runtime.call_sync("search_files", arguments).content))
    return answer


def test_a_model_finds_lines_by_paths_that_it_can_use(runtime: Runtime, folder: Path) -> None:
    """Paths start as the path of the call does, relative ones at the working folder."""
    (folder / "src").mkdir()
    (folder / "src" / "a.py").write_text("import os\n")

    assert call(runtime, pattern="import")["matches"] == [{"file": "src/a.py", "line": 1, "text": "import os"}]
    assert call(runtime, pattern="import", path="src/../src/")["matches"][0]["file"] == "src/a.py"
    assert call(runtime, pattern="import", path=str(folder))["matches"][0]["file"] == str(folder / "src" / "a.py")


def test_a_pattern_that_cannot_be_read_is_an_error(runtime: Runtime) -> None:
    """The answer says what is wrong with the pattern, for names as for content."""
    assert "'(a' cannot be searched for" in call(runtime, pattern="(a")["error"]
    assert "unmatched {" in call(runtime, pattern="*.{py", target="files")["error"]
    assert "empty" in call(runtime, pattern="")["error"]


def test_the_effect_is_reading_the_real_folder(runtime: Runtime, folder: Path) -> None:
    """The gate and the order of calls go by the folder behind the links."""
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")

    (effect,) = search_effects({"pattern": "x", "path": "link"}, runtime.context())

    assert (effect.kind, effect.target) == ("read", str(folder / "real"))


async def test_a_link_put_in_the_way_after_the_check_is_not_followed(runtime: Runtime, folder: Path) -> None:
    """What was agreed to for one folder does not happen in another."""
    (folder / "other").mkdir()
    (folder / "other" / "a").write_text("hit\n")
    (folder / "agreed").symlink_to("other")
    ctx = runtime.context(effects=(Effect("read", str(folder / "agreed"), str(folder)),))

    answer = json.loads(await search_files({"pattern": "hit", "path": "agreed"}, ctx))

    assert "link" in answer["error"]


@pytest.mark.services
async def test_a_search_that_takes_too_long_ends_and_says_so(runtime: Runtime, folder: Path) -> None:
    """A line that a backtracking engine would need years for costs no more than the time of the call."""
    (folder / "a").write_text("aab\n")
    (folder / "b").write_text(f"{SLOW_TEXT}c b\n" * 2)
    ctx = runtime.context(deadline=time.monotonic() + 4)

    answer = json.loads(await search_files({"pattern": f"^{SLOW_PATTERN}$"}, ctx, engine="python"))

    assert [one["file"] for one in answer["matches"]] == ["a"]
    assert "time ran out" in answer["truncated"]
    assert "total" not in answer


async def test_a_cancelled_search_leaves_no_process(runtime: Runtime, folder: Path) -> None:
    """Who stops a search stops the process that does it."""
    (folder / "a").write_text(f"{SLOW_TEXT}c b\n")
    search = asyncio.ensure_future(search_files({"pattern": f"^{SLOW_PATTERN}$"}, runtime.context(), engine="python"))
    found = await asyncio.to_thread(until, searching)

    search.cancel()
    await asyncio.gather(search, return_exceptions=True)

    assert await asyncio.to_thread(until, lambda: not found & searching())


def until(look: Callable[[], T]) -> T:
    """What `look` gives once that is something."""
    limit = time.monotonic() + 20
    while not (seen := look()):
        assert time.monotonic() < limit
    return seen


def searching() -> set[int]:
    """The children of this process that search."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent == os.getpid() and b"search_worker" in (process / "cmdline").read_bytes():
                found.add(int(process.name))
        except OSError:
            continue
    return found


@pytest.mark.services
def test_the_ignore_rules_are_only_imported_by_a_search_that_needs_them() -> None:
    """Neither the definitions of all tools nor the file service import pathspec."""
    program = (
        "import sys; from toolcrib import get_tool_definitions; get_tool_definitions(quiet_mode=True); "
        "import toolcrib.files.service; print('pathspec' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "False"
