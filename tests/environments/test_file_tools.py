"""The file tools where commands run elsewhere: in a container, and on another machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.environments.engines import IMAGE, SshServer
from toolcrib.core.approvals import Choice
from toolcrib.core.types import JsonObject
from toolcrib.registry.default import registry as default_registry
from toolcrib.registry.registry import ToolRegistry
from toolcrib.runtime import Runtime
from toolcrib.testing import ScriptedApprover, isolated_runtime

pytestmark = pytest.mark.services

DOCKER = f"terminal: {{backend: docker, docker: {{engine: docker, image: {IMAGE}, network: false}}}}\n"
SSH = """
terminal:
  backend: ssh
  ssh: {{host: {server.host}, port: {server.port}, user: {server.user}, key: {server.key}, known_hosts: {known}}}
"""
YES: tuple[Choice, ...] = ("once",) * 40


@pytest.fixture(params=["docker", "ssh"])
def runtime(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """A runtime with the built-in tools, whose commands run elsewhere."""
    if request.param == "docker":
        monkeypatch.setenv("DOCKER_HOST", request.getfixturevalue("docker_host"))
        config = DOCKER
    else:
        server: SshServer = request.getfixturevalue("ssh_server")
        config = SSH.format(server=server, known=tmp_path / "known_hosts")
    options: dict[str, Any] = {
        "registry": ToolRegistry(parent=default_registry),
        "workspace": tmp_path,
        "approver": ScriptedApprover(*YES),
    }
    with ExitStack() as opened:
        yield opened.enter_context(isolated_runtime(tmp_path / "home", config, **options))


@pytest.fixture
def folder(runtime: Runtime) -> Iterator[str]:
    """A new folder there; gone afterwards."""
    made = run(runtime, "mktemp -d").strip()
    yield made
    run(runtime, f"cd /; rm -rf {made}")


def call(runtime: Runtime, name: str, **arguments: Any) -> JsonObject:
    answer: JsonObject = json.loads(runtime.call_sync(name, arguments).text)
    return answer


def run(runtime: Runtime, command: str) -> str:
    answer = call(runtime, "terminal", command=command)
    assert answer["exit_code"] == 0, answer
    output: str = answer["output"]
    return output


def test_a_file_is_read_where_the_commands_run(runtime: Runtime, folder: str) -> None:
    """Lines, numbers, totals and the place to go on are those of the file there; relative paths start in its folder."""
    run(runtime, f"cd {folder} && seq 1 5000 > numbers && printf 'caf\\351\\r\\n' > old")

    part = call(runtime, "read_file", path="numbers", offset=4000, limit=2)
    old = call(runtime, "read_file", path=f"{folder}/old")

    assert part["content"] == "  4000|4000\n  4001|4001"
    assert (part["path"], part["total_lines"], part["next_offset"]) == (f"{folder}/numbers", 5000, 4002)
    assert (old["content"], old["encoding"], old["line_ends"]) == ("     1|café", "cp1252", "crlf")


def test_a_link_there_is_named_and_not_followed(runtime: Runtime, folder: str) -> None:
    """What a link leads to is judged by its own path: the error says which one to name."""
    run(runtime, f"cd {folder} && ln -s /etc/hostname link")

    answer = call(runtime, "read_file", path="link")

    assert "/etc/hostname" in answer["error"]
    assert "content" in call(runtime, "read_file", path="/etc/hostname")


def test_what_is_no_file_there_is_refused_without_waiting(runtime: Runtime, folder: str) -> None:
    """Pipes, folders and missing files are told apart, and near names are proposed."""
    run(runtime, f"cd {folder} && mkfifo pipe && mkdir sub && touch sub/inner config.yaml")

    assert "neither a file nor a folder" in call(runtime, "read_file", path="pipe")["error"]
    assert call(runtime, "read_file", path="sub")["entries"] == ["inner"]
    assert call(runtime, "read_file", path="config.yml")["did_you_mean"] == [f"{folder}/config.yaml"]
    assert "never read" in call(runtime, "read_file", path="/dev/zero")["error"]


def test_a_repeat_is_short_and_a_change_is_seen(runtime: Runtime, folder: str) -> None:
    """The stamp of a file there tells whether it is the one that was read."""
    run(runtime, f"cd {folder} && echo one > f")

    answers = [call(runtime, "read_file", path="f") for _ in range(3)]
    run(runtime, f"echo two! > {folder}/f")
    changed = call(runtime, "read_file", path="f")

    assert [answer.get("unchanged", False) for answer in answers] == [False, True, False]
    assert changed["content"] == "     1|two!"


def test_images_and_notebooks_come_from_there(runtime: Runtime, folder: str) -> None:
    """Bytes are brought over for what is read here."""
    notebook = '{"cells": [{"cell_type": "code", "source": "print(1)"}]}'
    run(runtime, f"cd {folder} && printf '\\211PNG\\r\\n\\032\\nIEND' > p && printf '%s' '{notebook}' > n.ipynb")

    image = runtime.call_sync("read_file", {"path": "p"}).content
    text = call(runtime, "read_file", path="n.ipynb")

    assert isinstance(image, dict)
    assert image["content"][1]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgpJRU5E"
    assert "print(1)" in text["content"]
