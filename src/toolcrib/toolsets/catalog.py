"""Every toolset and platform preset, as data that tool files and plugins may extend in place.

An entry is `{"description", "tools", "includes"}`; `"posture": True` marks a set that describes a way of working with
the core tools, so disabling it removes no core tool. Resolution copies nothing from here: appending to `CORE_TOOLS` or
to an entry's lists, or adding an entry, takes effect at the next resolution.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

ToolsetEntry = dict[str, Any]

PRESET_PREFIX = "hermes-"

_WEB = ["web_search", "web_extract"]
_TERMINAL = ["terminal", "process"]
_DESKTOP_TERMINAL = ["read_terminal", "close_terminal"]
_FILE = ["read_file", "write_file", "patch", "search_files"]
_SKILLS = ["skills_list", "skill_view", "skill_manage"]
_CDP = ["browser_cdp", "browser_dialog"]
_BROWSER_PAGES = [
    "browser_navigate",
    "browser_snapshot",
    "browser_click",
    "browser_type",
    "browser_scroll",
    "browser_back",
    "browser_press",
    "browser_get_images",
    "browser_vision",
    "browser_console",
]
_BROWSER = [*_BROWSER_PAGES, *_CDP]
_HOME_ASSISTANT = ["ha_list_entities", "ha_get_state", "ha_list_services", "ha_call_service"]
_KANBAN = [
    "kanban_show",
    "kanban_list",
    "kanban_complete",
    "kanban_block",
    "kanban_heartbeat",
    "kanban_comment",
    "kanban_create",
    "kanban_link",
    "kanban_unblock",
    "kanban_attach",
    "kanban_attach_url",
    "kanban_attachments",
]
_YUANBAO = ["yb_query_group_info", "yb_query_group_members", "yb_send_dm", "yb_search_sticker", "yb_send_sticker"]
_FEISHU_DRIVE = [
    "feishu_drive_list_comments",
    "feishu_drive_list_comment_replies",
    "feishu_drive_reply_comment",
    "feishu_drive_add_comment",
]
_SPOTIFY = [
    "spotify_playback",
    "spotify_devices",
    "spotify_queue",
    "spotify_search",
    "spotify_playlists",
    "spotify_albums",
    "spotify_library",
]
_RL = [
    "rl_list_environments",
    "rl_select_environment",
    "rl_get_current_config",
    "rl_edit_config",
    "rl_start_training",
    "rl_check_status",
    "rl_stop_training",
    "rl_get_results",
    "rl_list_runs",
    "rl_test_inference",
]
_ACP = [
    *_WEB,
    *_TERMINAL,
    *_FILE,
    "vision_analyze",
    *_SKILLS,
    *_BROWSER,
    "todo",
    "memory",
    "session_search",
    "execute_code",
    "delegate_task",
]

CORE_TOOLS: list[str] = [
    *_WEB,
    *_TERMINAL,
    *_DESKTOP_TERMINAL,
    *_FILE,
    "vision_analyze",
    "image_generate",
    *_SKILLS,
    *_BROWSER,
    "text_to_speech",
    "todo",
    "memory",
    "session_search",
    "clarify",
    "execute_code",
    "delegate_task",
    "cronjob",
    *_HOME_ASSISTANT,
    *_KANBAN,
    "computer_use",
]
"""What every full preset offers. The presets share this list, so appending to it changes all of them."""


def _entry(description: str, tools: Iterable[str] = (), includes: Iterable[str] = ()) -> ToolsetEntry:
    # Each entry owns its lists: appending to one toolset must not leak into another.
    return {"description": description, "tools": list(tools), "includes": list(includes)}


def _preset(description: str, includes: Iterable[str] = ()) -> ToolsetEntry:
    return {"description": description, "tools": CORE_TOOLS, "includes": list(includes)}


_BUNDLES: dict[str, ToolsetEntry] = {
    "web": _entry("Search the web and read pages", _WEB),
    "search": _entry("Search the web without reading pages", ["web_search"]),
    "x_search": _entry("Search posts on X", ["x_search"]),
    "vision": _entry("Look at images", ["vision_analyze"]),
    "video": _entry("Watch and describe videos", ["video_analyze"]),
    "image_gen": _entry("Make images from text", ["image_generate"]),
    "video_gen": _entry("Make, edit and extend videos", ["video_generate", "xai_video_edit", "xai_video_extend"]),
    "computer_use": _entry("Drive the desktop with mouse and keyboard", ["computer_use"]),
    "terminal": _entry("Run commands and manage background processes", [*_TERMINAL, *_DESKTOP_TERMINAL]),
    "skills": _entry("Read, write and manage skills", _SKILLS),
    "browser": _entry("Drive a web browser, with a search to find where to start", [*_BROWSER, "web_search"]),
    "browser-cdp": _entry("Speak the DevTools protocol to a browser and answer its dialogs", _CDP),
    "cronjob": _entry("Schedule tasks and manage the schedule", ["cronjob"]),
    "messaging": _entry("Send messages through connected platforms", ["send_message"]),
    "file": _entry("Read, write, patch and search files", _FILE),
    "tts": _entry("Turn text into speech", ["text_to_speech"]),
    "todo": _entry("Keep a task list within a session", ["todo"]),
    "memory": _entry("Remember facts from one session to the next", ["memory"]),
    "context_engine": _entry("Tools of the active context engine, if it has any"),
    "session_search": _entry("Search earlier conversations", ["session_search"]),
    "project": _entry("Create, list and switch projects", ["project_create", "project_list", "project_switch"]),
    "clarify": _entry("Ask the user a question", ["clarify"]),
    "code_execution": _entry("Run Python that calls other tools", ["execute_code"]),
    "delegation": _entry("Hand a subtask to another agent", ["delegate_task"]),
    "moa": _entry("Ask several models a hard question together", ["mixture_of_agents"]),
    "rl": _entry("Set up, run and inspect reinforcement-learning training", _RL),
    "homeassistant": _entry("See and control a smart home through Home Assistant", _HOME_ASSISTANT),
    "kanban": _entry("Work on the cards of a shared board", _KANBAN),
    "discord": _entry("Read and take part in Discord conversations", ["discord"]),
    "discord_admin": _entry("Administer a Discord server", ["discord_admin"]),
    "yuanbao": _entry("Groups, direct messages and stickers of Yuanbao", _YUANBAO),
    "feishu_doc": _entry("Read Feishu documents", ["feishu_doc_read"]),
    "feishu_drive": _entry("Read and answer comments on Feishu files", _FEISHU_DRIVE),
    "spotify": _entry("Play, search and organise music on Spotify", _SPOTIFY),
    "debugging": _entry("Debug a problem: commands, files and the web", _TERMINAL, ["web", "file"]),
    "safe": _entry("No commands and no files: the web and images only", (), ["web", "vision", "image_gen"]),
    "coding": {
        **_entry("Write software: everything for coding, nothing else", [*_ACP, *_DESKTOP_TERMINAL, "clarify"]),
        "posture": True,
    },
}

_PLATFORMS: dict[str, ToolsetEntry] = {
    "hermes-telegram": _preset("Telegram bot"),
    "hermes-discord": _preset("Discord bot", ["discord", "discord_admin"]),
    "hermes-whatsapp": _preset("WhatsApp bot"),
    "hermes-slack": _preset("Slack bot"),
    "hermes-signal": _preset("Signal bot"),
    "hermes-bluebubbles": _preset("iMessage through BlueBubbles"),
    "hermes-homeassistant": _preset("Home Assistant conversation agent"),
    "hermes-email": _preset("Email by IMAP and SMTP"),
    "hermes-mattermost": _preset("Mattermost bot"),
    "hermes-matrix": _preset("Matrix bot"),
    "hermes-dingtalk": _preset("DingTalk bot"),
    "hermes-feishu": _preset("Feishu bot", ["feishu_doc", "feishu_drive"]),
    "hermes-weixin": _preset("Weixin account"),
    "hermes-qqbot": _preset("QQ bot"),
    "hermes-wecom": _preset("WeCom bot"),
    "hermes-wecom-callback": _preset("WeCom application by callback"),
    "hermes-yuanbao": _preset("Yuanbao bot", ["yuanbao"]),
    "hermes-sms": _preset("Text messages"),
    "hermes-webhook": _entry(
        "Incoming webhooks: untrusted text, so no tools that act", [*_WEB, "vision_analyze", "clarify"]
    ),
}

TOOLSETS: dict[str, ToolsetEntry] = {
    **_BUNDLES,
    "hermes-cli": _preset("Chat in the terminal"),
    "hermes-cron": _preset("Scheduled tasks"),
    "hermes-acp": _entry("Agent inside an editor, over the Agent Client Protocol", _ACP),
    "hermes-api-server": _entry(
        "OpenAI-compatible server, where no user can answer", [*_ACP, "image_generate", "cronjob", *_HOME_ASSISTANT]
    ),
    **_PLATFORMS,
    "hermes-gateway": _entry("Every messaging platform together", (), _PLATFORMS),
}

SHORT_NAMES: dict[str, str] = {
    name.removeprefix(PRESET_PREFIX): name
    for name in TOOLSETS
    if name.startswith(PRESET_PREFIX) and name.removeprefix(PRESET_PREFIX) not in TOOLSETS
}
"""`cli` → `hermes-cli` …; a platform whose own toolset has the short name (`discord`) keeps only the long one."""


def create_custom_toolset(
    name: str, description: str, tools: list[str] | None = None, includes: list[str] | None = None
) -> None:
    """Add a toolset to the catalog, or replace the one with that name; takes effect at the next resolution."""
    TOOLSETS[name] = _entry(description, tools or (), includes or ())


LEGACY_TOOLSETS: dict[str, list[str]] = {
    "web_tools": ["web_search", "web_extract"],
    "terminal_tools": ["terminal"],
    "vision_tools": ["vision_analyze"],
    "moa_tools": ["mixture_of_agents"],
    "image_tools": ["image_generate"],
    "skills_tools": ["skills_list", "skill_view", "skill_manage"],
    "browser_tools": _BROWSER_PAGES,
    "cronjob_tools": ["cronjob"],
    "rl_tools": [
        "rl_list_environments",
        "rl_select_environment",
        "rl_get_current_config",
        "rl_edit_config",
        "rl_start_training",
        "rl_check_status",
        "rl_stop_training",
        "rl_get_results",
        "rl_list_runs",
        "rl_test_inference",
    ],
    "file_tools": ["read_file", "write_file", "patch", "search_files"],
    "tts_tools": ["text_to_speech"],
}
