"""Every tool with a service behind it, against every way in which a service fails: one sentence, and never the key."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from tests.media.services import FAILURES, KEY, OpenMedia, as_json, failing
from tests.media.test_speech import LISTENERS, SPEAKERS, WAV
from tests.web.sites import Page, Site, SiteRequest
from toolcrib.agent.host import AgentHost
from toolcrib.integrations import discord, feishu, home_assistant, spotify, x_search
from toolcrib.integrations.spotify_login import SpotifyLogin
from toolcrib.media.generation.service import IMAGES, VIDEOS
from toolcrib.media.speech import hosted
from toolcrib.media.speech import service as speech_service
from toolcrib.memory_providers import honcho, mem0
from toolcrib.providers import streaming
from toolcrib.providers.scripted import ScriptedProvider
from toolcrib.registry.default import registry
from toolcrib.runtime import Runtime
from toolcrib.sessions.store import SessionStore
from toolcrib.web.token_store import StoredLogin

Rows = dict[str, "ServiceRow"]


class ServiceRow(NamedTuple):
    """One tool with one service: how to call it, and what it says otherwise than most."""

    tool: str
    arguments: Mapping[str, Any] = {}
    environ: Mapping[str, str] = {}
    """`{}` is the address of the service."""
    section: str = ""
    """The section of the config with the service's `timeout`; its settings come from `settings`."""
    settings: Mapping[str, Any] = {}
    answers: Mapping[str, Any] = {}
    """What the service answers even then, such as a token for its other routes."""
    limits: ModuleType | None = None
    """The module whose SECONDS is the time limit."""
    says: Mapping[str, str | None] = {}
    """By failure: a part of another sentence; None if that is no failure for this tool."""
    key: str = "error"
    """Where the result has its sentence."""


def media(tool: str, section: str, provider: str, **arguments: Any) -> ServiceRow:
    settings = {"provider": provider, "base_url": "{}", "key_env": "TEST_KEY", "max_file_mb": 1}
    if section in ("tts", "stt"):
        del settings["max_file_mb"]
    key = "note" if section == "stt" else "error"
    return ServiceRow(
        tool,
        arguments,
        section=section,
        settings=settings,
        key=key,
        says={"slow": "(did not answer within|longer than) 0.5"},
    )


def video(tool: str, provider: str, **arguments: Any) -> ServiceRow:
    settings = {"provider": provider, "base_url": "{}", "model": "kling", "max_file_mb": 1}
    variable = VIDEOS[provider].key_variables[0]
    return ServiceRow(tool, {"prompt": "Waves", **arguments}, {variable: KEY}, "video_gen", settings)


HOME = {"HASS_TOKEN": KEY, "HASS_URL": "{}"}
DISCORD = {"DISCORD_BOT_TOKEN": KEY, "DISCORD_API_URL": "{}"}
SPOTIFY = {"SPOTIFY_API_URL": "{}/v1", "SPOTIFY_ACCOUNTS_URL": "{}"}
FEISHU = {"FEISHU_APP_ID": "app", "FEISHU_APP_SECRET": KEY, "FEISHU_BASE_URL": "{}"}
X = {"XAI_API_KEY": KEY, "XAI_BASE_URL": "{}"}
HONCHO = {"HONCHO_API_KEY": KEY, "HONCHO_URL": "{}", "HONCHO_USER": "me"}
MEM0 = {"MEM0_API_KEY": KEY, "MEM0_BASE_URL": "{}"}
LOG_IN_AGAIN = "no longer accepts the login; run `toolcrib login spotify`"
FEISHU_TOKEN = {
    "/open-apis/auth/v3/tenant_access_token/internal": as_json(
        {"code": 0, "tenant_access_token": "t-1", "expire": 7200}
    )
}
SPOTIFY_TOKEN = {"/api/token": as_json({"access_token": "new", "expires_in": 3_600})}
CARD = {"filename": "a.txt", "url": "{}/a.txt"}
MODEL_SAYS = {
    "wrong key": "rejects the key in TEST_KEY",
    "no credit": "credit or quota of your one account is used up",
    "quota": "accepts no more requests",
    "server": "cannot answer with model",
    "request": "rejects the request",
    "malformed": "(unreadable|broke off its) answer",
    "another shape": "broke off its answer",
    "a list": "broke off its answer",
    "slow": "did not answer within",
}
DOWNLOAD_SAYS = {
    "wrong key": "answered HTTP 401",
    "no credit": "answered HTTP 402",
    "quota": "answered HTTP 429",
    "server": "answered HTTP 503",
    "request": "answered HTTP 400",
    "malformed": None,
    "another shape": None,
    "a list": None,
    "slow": "took longer than 0.5 seconds",
}

ROWS: Rows = {
    **{f"image_generate {name}": media("image_generate", "image_gen", name, prompt="A house") for name in IMAGES},
    **{f"video_generate {name}": video("video_generate", name) for name in VIDEOS},
    **{
        tool: video(tool, "xai", video_url="https://videos.example/a.mp4")
        for tool in ("xai_video_edit", "xai_video_extend")
    },
    **{f"text_to_speech {name}": media("text_to_speech", "tts", name, text="Good morning.") for name in SPEAKERS},
    **{f"read_file {name}": media("read_file", "stt", name, path="voice.wav") for name in LISTENERS},
    "mixture_of_agents": ServiceRow("mixture_of_agents", {"user_prompt": "6 times 7?"}, section="moa", says=MODEL_SAYS),
    "ha_list_entities": ServiceRow("ha_list_entities", {}, HOME, limits=home_assistant),
    "ha_get_state": ServiceRow("ha_get_state", {"entity_id": "light.kitchen"}, HOME, limits=home_assistant),
    "ha_list_services": ServiceRow("ha_list_services", {}, HOME, limits=home_assistant),
    "ha_call_service": ServiceRow(
        "ha_call_service",
        {"domain": "light", "service": "turn_on"},
        HOME,
        limits=home_assistant,
        says={"request": "did not accept 'light.turn_on'"},
    ),
    "discord": ServiceRow("discord", {"action": "fetch_messages", "channel_id": "2"}, DISCORD, limits=discord),
    "discord_admin": ServiceRow("discord_admin", {"action": "list_channels", "guild_id": "1"}, DISCORD, limits=discord),
    **{
        tool: ServiceRow(
            tool, arguments, SPOTIFY, answers=SPOTIFY_TOKEN, limits=spotify, says={"wrong key": LOG_IN_AGAIN}
        )
        for tool, arguments in {
            "spotify_playback": {"action": "get_state"},
            "spotify_devices": {"action": "list"},
            "spotify_queue": {"action": "get"},
            "spotify_search": {"query": "gold"},
            "spotify_playlists": {"action": "list"},
            "spotify_albums": {"action": "get", "album_id": "4iV5W9uYEdYUVa79Axb7Rh"},
            "spotify_library": {"kind": "tracks", "action": "list"},
        }.items()
    },
    **{
        tool: ServiceRow(tool, arguments, FEISHU, answers=FEISHU_TOKEN, limits=feishu)
        for tool, arguments in {
            "feishu_doc_read": {"doc_token": "abc"},
            "feishu_drive_list_comments": {"file_token": "abc"},
            "feishu_drive_list_comment_replies": {"file_token": "abc", "comment_id": "c1"},
            "feishu_drive_reply_comment": {"file_token": "abc", "comment_id": "c1", "content": "Done"},
            "feishu_drive_add_comment": {"file_token": "abc", "content": "Nice"},
        }.items()
    },
    "x_search": ServiceRow("x_search", {"query": "What was launched?"}, X, limits=x_search),
    "kanban_attach_url": ServiceRow("kanban_attach_url", CARD, section="web", says=DOWNLOAD_SAYS),
    **{
        tool: ServiceRow(tool, arguments, HONCHO, "memory", {"provider": "honcho"}, limits=honcho)
        for tool, arguments in {
            "honcho_profile": {},
            "honcho_search": {"query": "cat"},
            "honcho_context": {"query": "cat"},
            "honcho_reasoning": {"query": "Which cat?"},
            "honcho_conclude": {"conclusion": "Has a cat"},
        }.items()
    },
    **{
        tool: ServiceRow(
            tool,
            arguments,
            MEM0,
            "memory",
            {"provider": "mem0"},
            limits=mem0,
            # A change that was accepted is done, whatever its answer says.
            says={} if tool == "mem0_search" else {"another shape": None, "a list": None},
        )
        for tool, arguments in {
            "mem0_search": {"query": "cat"},
            "mem0_add": {"content": "Has a cat"},
            "mem0_update": {"memory_id": "7", "content": "Has two cats"},
            "mem0_delete": {"memory_id": "7"},
        }.items()
    },
}
TESTED_ELSEWHERE = {
    "tests/web/test_search.py": "web_search",
    "tests/web/test_extract.py": "web_extract",
    "tests/media/test_vision.py": "vision_analyze",
    "tests/media/test_video.py": "video_analyze",
    "tests/browser": "browser_",
}
ASKS_NO_SERVICE = """
clarify close_terminal computer_use cronjob delegate_task execute_code memory patch process project_create project_list
project_switch read_terminal search_files session_search skill_manage skill_view skills_list terminal todo tool_call
tool_describe tool_search write_file kanban_attach kanban_attachments kanban_block kanban_comment kanban_complete
kanban_create kanban_heartbeat kanban_link kanban_list kanban_show kanban_unblock
"""


def test_every_tool_and_every_service_has_a_row(runtime: Runtime) -> None:
    """A new tool needs a row here, or a place among those that ask nobody."""
    runtime.load()
    tools = {entry.name for entry in registry.entries() if entry.is_ours}
    tools |= {schema["name"] for schema in (*honcho.TOOLS, *mem0.TOOLS)}
    rows = {row.tool for row in ROWS.values()} | set(ASKS_NO_SERVICE.split())

    assert [name for name in sorted(tools - rows) if not name.startswith(tuple(TESTED_ELSEWHERE.values()))] == []
    assert rows - tools == set()
    assert set(SPEAKERS) == set(hosted.SPEAKERS)
    assert set(LISTENERS) == set(hosted.LISTENERS)
    assert all((Path(__file__).parents[2] / place).exists() for place in TESTED_ELSEWHERE)


class FailingPages(dict[str, Any]):
    """The pages of a service that answers everything else with its failure."""

    failure: Page | Callable[[SiteRequest], Page]

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(key, self.failure)


class Bench:
    """Calls one tool of the table while its service fails."""

    def __init__(self, row: ServiceRow, site: Site, open_runtime: OpenMedia) -> None:
        self.row = row
        self._site = site
        self._open_runtime = open_runtime
        site.pages = FailingPages(row.answers)

    def open(self, seconds: float) -> Runtime:
        row, address = self.row, self._site.address
        placed = {key: address if value == "{}" else value for key, value in row.settings.items()}
        sections: dict[str, Any] = {
            "web": {"ports": [80, 443, self._site.port]},
            "security": {"allow_private_urls": True},
            "providers": {name: {"base_url": address, "model": "m", "key_env": "TEST_KEY"} for name in ("one", "two")},
            "model": {"default": "one/m", "max_retries": 0},
            "moa": {"reference_models": ["one/m", "two/m"]},
        }
        timed = {} if row.section in ("", "memory") else {"timeout": seconds}
        if row.section:
            sections[row.section] = {**sections.get(row.section, {}), **placed, **timed}
        runtime = self._open_runtime(**sections)
        (Path(runtime.workspace) / "voice.wav").write_bytes(WAV)
        if row.tool.startswith("spotify_"):
            tokens = {"access_token": KEY, "refresh_token": "r", "expires_in": 3_600}
            login = StoredLogin(tokens=tokens, renew_at=time.time() + 3_600, client={"client_id": "app"})
            SpotifyLogin(runtime.settings.home, lambda: runtime.services.web.client).store.update(lambda _: login)
        if row.section == "memory":
            host = AgentHost(runtime=runtime, store=SessionStore.in_memory(), model=ScriptedProvider([]))
            host.external_memory.attach()
        return runtime

    async def call(self, runtime: Runtime, how: str) -> str:
        """The sentence of the failure."""
        assert isinstance(self._site.pages, FailingPages)
        self._site.pages.failure = failing(self._site, FAILURES[how][0])
        address = self._site.address
        arguments = {
            key: value.replace("{}", address) if isinstance(value, str) else value
            for key, value in self.row.arguments.items()
        }
        result = await runtime.call(self.row.tool, arguments)
        assert KEY not in result.text
        return str(json.loads(result.text)[self.row.key])


@pytest.fixture
def open_bench(open_runtime: OpenMedia, site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[[ServiceRow], Bench]:
    def make(row: ServiceRow) -> Bench:
        monkeypatch.setenv("TEST_KEY", KEY)
        for name, value in row.environ.items():
            monkeypatch.setenv(name, value.format(site.address))
        for module in (honcho, mem0, streaming):
            monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 1_000_000)
        # Nothing on this machine recognises speech.
        monkeypatch.setattr(speech_service, "is_installed", lambda: False)
        return Bench(row, site, open_runtime)

    return make


@pytest.mark.parametrize("name", ROWS)
async def test_every_failure_of_a_service_is_one_sentence(
    open_bench: Callable[[ServiceRow], Bench], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong key, no credit, quota, a problem, a refusal, nonsense, too much, silence; nothing is left running."""
    row = ROWS[name]
    bench = open_bench(row)
    patient = bench.open(20.0)
    said = {
        how: await bench.call(patient, how) for how in FAILURES if how != "slow" and row.says.get(how, "") is not None
    }
    if row.limits is not None:
        monkeypatch.setattr(row.limits, "SECONDS", 0.5)
    said["slow"] = await bench.call(bench.open(0.5), "slow")

    for how, sentence in said.items():
        assert re.search(row.says.get(how) or re.escape(FAILURES[how][1]), sentence), f"{how}: {sentence}"
        assert "\n" not in sentence
        assert len(sentence) < 500
    assert len(asyncio.all_tasks()) == 1
