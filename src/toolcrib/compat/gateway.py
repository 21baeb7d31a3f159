"""`gateway.config`, `gateway.platforms.base` and `.helpers`: settings, messages and adapters of messaging platforms.

An adapter can be written, registered and tested with these; toolcrib does not run adapters yet, and says so when one
hands it a message.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

from toolcrib.compat.hermes_constants import get_hermes_dir
from toolcrib.config.files import make_folder
from toolcrib.config.load import is_yes
from toolcrib.core.errors import UsageError


class Platform(Enum):
    """A messaging platform. A name that is not here becomes a member when it is first used."""

    LOCAL = "local"
    TELEGRAM = "telegram"
    DISCORD = "discord"
    WHATSAPP = "whatsapp"
    WHATSAPP_CLOUD = "whatsapp_cloud"
    SLACK = "slack"
    SIGNAL = "signal"
    MATTERMOST = "mattermost"
    MATRIX = "matrix"
    HOMEASSISTANT = "homeassistant"
    EMAIL = "email"
    SMS = "sms"
    DINGTALK = "dingtalk"
    API_SERVER = "api_server"
    WEBHOOK = "webhook"
    MSGRAPH_WEBHOOK = "msgraph_webhook"
    FEISHU = "feishu"
    WECOM = "wecom"
    WECOM_CALLBACK = "wecom_callback"
    WEIXIN = "weixin"
    BLUEBUBBLES = "bluebubbles"
    QQBOT = "qqbot"
    YUANBAO = "yuanbao"
    RELAY = "relay"

    @classmethod
    def _missing_(cls, value: object) -> Platform | None:
        name = value.strip().lower() if isinstance(value, str) else ""
        if not name:
            return None
        known = cls._value2member_map_.get(name)
        if known is not None:
            return cls(name)
        member = object.__new__(cls)
        member._name_, member._value_ = name.upper().replace("-", "_"), name
        cls._member_map_[member._name_] = member
        cls._value2member_map_[name] = member
        return member


@dataclass
class HomeChannel:
    """Where a platform's own messages go."""

    platform: Platform
    chat_id: str
    name: str = ""
    thread_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        facts = {"platform": self.platform.value, "chat_id": self.chat_id, "name": self.name}
        return {**facts, "thread_id": self.thread_id} if self.thread_id else facts

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> HomeChannel:
        thread = data.get("thread_id")
        return cls(
            platform=Platform(data["platform"]),
            chat_id=str(data["chat_id"]),
            name=str(data.get("name") or "Home"),
            thread_id=str(thread) if thread else None,
        )


@dataclass
class PlatformConfig:
    """The settings of one platform; what it alone knows is in `extra`."""

    enabled: bool = False
    token: str | None = None
    api_key: str | None = None
    home_channel: HomeChannel | None = None
    reply_to_mode: str = "first"
    gateway_restart_notification: bool = True
    typing_indicator: bool = True
    typing_status_text: str | None = None
    channel_overrides: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The settings for a config file, without empty ones."""
        facts = asdict(self) | {"home_channel": self.home_channel.to_dict() if self.home_channel else None}
        always = ("enabled", "extra", "reply_to_mode", "gateway_restart_notification", "typing_indicator")
        return {name: value for name, value in facts.items() if name in always or value}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> PlatformConfig:
        channel = data.get("home_channel")
        return cls(
            enabled=_flag(data, "enabled", False),
            token=data.get("token"),
            api_key=data.get("api_key"),
            home_channel=HomeChannel.from_dict(channel) if channel else None,
            reply_to_mode=str(data.get("reply_to_mode") or "first"),
            gateway_restart_notification=_flag(data, "gateway_restart_notification", True),
            typing_indicator=_flag(data, "typing_indicator", True),
            typing_status_text=data.get("typing_status_text"),
            channel_overrides=dict(data.get("channel_overrides") or {}),
            extra=dict(data.get("extra") or {}),
        )


def _flag(data: dict[str, Any], name: str, default: bool) -> bool:
    value = data.get(name, default)
    return is_yes(value) if isinstance(value, str) else bool(default if value is None else value)


class MessageType(Enum):
    """What a message is."""

    TEXT = "text"
    LOCATION = "location"
    PHOTO = "photo"
    VIDEO = "video"
    AUDIO = "audio"
    VOICE = "voice"
    DOCUMENT = "document"
    STICKER = "sticker"
    COMMAND = "command"


class ProcessingOutcome(Enum):
    """How the work on a message ended."""

    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"


@dataclass
class MessageEvent:
    """A message that arrived."""

    text: str
    message_type: MessageType = MessageType.TEXT
    source: Any = None
    raw_message: Any = None
    message_id: str | None = None
    platform_update_id: int | None = None
    media_urls: list[str] = field(default_factory=list)
    media_types: list[str] = field(default_factory=list)
    reply_to_message_id: str | None = None
    reply_to_text: str | None = None
    reply_to_author_id: str | None = None
    reply_to_author_name: str | None = None
    reply_to_is_own_message: bool = False
    auto_skill: str | list[str] | None = None
    channel_prompt: str | None = None
    channel_context: str | None = None
    internal: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    timestamp: datetime = field(default_factory=datetime.now)

    def is_command(self) -> bool:
        return self.text.startswith("/")

    def get_command(self) -> str | None:
        """The name of the command, without the slash and the bot's name; None for a path and for plain text."""
        if not self.is_command():
            return None
        word = self.text.split(maxsplit=1)[0][1:].partition("@")[0].lower()
        return None if "/" in word else word

    def get_command_args(self) -> str:
        """What follows the command; the whole text if there is none."""
        return self.text.partition(" ")[2].strip() if self.is_command() else self.text


@dataclass
class SendResult:
    """How sending a message went."""

    success: bool
    message_id: str | None = None
    error: str | None = None
    raw_response: Any = None
    retryable: bool = False
    retry_after: float | None = None
    continuation_message_ids: tuple[str, ...] = ()
    error_kind: str | None = None


MessageHandler = Callable[[MessageEvent], Awaitable[Any]]


class BasePlatformAdapter(ABC):
    """The connection to one platform. A subclass connects, sends, and hands over what arrives."""

    MAX_MESSAGE_LENGTH = 4096

    def __init__(self, config: PlatformConfig, platform: Platform) -> None:
        self.config = config
        self.platform = platform
        self._message_handler: MessageHandler | None = None
        self._running = False

    @property
    def name(self) -> str:
        return self.platform.value.title()

    @property
    def is_connected(self) -> bool:
        return self._running

    @abstractmethod
    async def connect(self, *, is_reconnect: bool = False) -> bool:
        """Connect; True on success."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close the connection."""

    @abstractmethod
    async def send(
        self, chat_id: str, content: str, reply_to: str | None = None, metadata: dict[str, Any] | None = None
    ) -> SendResult:
        """Send a message."""

    @abstractmethod
    async def get_chat_info(self, chat_id: str) -> dict[str, Any]:
        """The name and kind of a chat."""

    def set_message_handler(self, handler: MessageHandler) -> None:
        """Set who receives messages."""
        self._message_handler = handler

    async def handle_message(self, event: MessageEvent) -> None:
        """Hand over a message that arrived, and send the answer."""
        if self._message_handler is None:
            raise UsageError(f"nothing receives messages from {self.name}: toolcrib does not serve platforms yet")
        answer = await self._message_handler(event)
        chat = getattr(event.source, "chat_id", None)
        if answer and chat:
            await self.send(chat, str(answer), reply_to=event.message_id)

    async def send_typing(self, chat_id: str, metadata: dict[str, Any] | None = None) -> None:  # noqa: B027 - optional
        """Show that an answer is being written, if the platform can."""

    def format_message(self, content: str) -> str:
        """The text as the platform wants it."""
        return content

    def _mark_connected(self) -> None:
        self._running = True

    def _mark_disconnected(self) -> None:
        self._running = False


def utf16_len(s: str) -> int:
    """The length of a text in UTF-16 units, as Telegram counts."""
    return len(s.encode("utf-16-le", errors="surrogatepass")) // 2


_IMAGE_STARTS = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"BM")


def cache_image_from_bytes(data: bytes, ext: str = ".jpg") -> str:
    """Write an image to the cache of the home; raises ValueError if it is none."""
    if not data.startswith(_IMAGE_STARTS) and not (data[:4] == b"RIFF" and data[8:12] == b"WEBP"):
        raise ValueError(f"this is no image, so it is not cached as {ext}: it starts with {data[:16]!r}")
    return _cache("images", "image_cache", f"img_{secrets.token_hex(6)}{ext}", data)


def cache_audio_from_bytes(data: bytes, ext: str = ".ogg") -> str:
    """Write a recording to the cache of the home."""
    return _cache("audio", "audio_cache", f"audio_{secrets.token_hex(6)}{ext}", data)


def cache_document_from_bytes(data: bytes, filename: str) -> str:
    """Write a document to the cache of the home, under its own name behind a prefix."""
    own = Path(filename.replace("\\", "/")).name.replace("\0", "") or "document"
    return _cache("documents", "document_cache", f"doc_{hashlib.sha256(data).hexdigest()[:12]}_{own}", data)


def _cache(kind: str, former: str, name: str, data: bytes) -> str:
    folder = get_hermes_dir(f"cache/{kind}", former)
    make_folder(folder)
    file = folder / name
    file.write_bytes(data)
    return str(file)


class MessageDeduplicator:
    """Recognises messages that a platform delivers twice."""

    def __init__(self, max_size: int = 2000, ttl_seconds: float = 300) -> None:
        self._max_size = max_size
        self._ttl_seconds = ttl_seconds
        self._seen: OrderedDict[str, float] = OrderedDict()

    def is_duplicate(self, msg_id: str) -> bool:
        """Whether this id was here before; remembers it."""
        if not msg_id:
            return False
        if self.contains(msg_id):
            return True
        self._seen[msg_id] = time.monotonic()
        self._seen.move_to_end(msg_id)
        while len(self._seen) > self._max_size:
            self._seen.popitem(last=False)
        return False

    def contains(self, msg_id: str) -> bool:
        seen_at = self._seen.get(msg_id)
        return seen_at is not None and time.monotonic() - seen_at < self._ttl_seconds

    def discard(self, msg_id: str) -> None:
        self._seen.pop(msg_id, None)

    def clear(self) -> None:
        self._seen.clear()


_MARKDOWN = (
    (re.compile(r"^```[^\n]*\n?", re.MULTILINE), ""),
    (re.compile(r"`([^`\n]+)`"), r"\1"),
    (re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)"), r"\1"),
    (re.compile(r"\*\*([^*\n]+)\*\*|(?<!\w)__([^_\n]+)__(?!\w)"), r"\1\2"),
    (re.compile(r"(?<![\w*])\*([^*\n]+)\*(?![\w*])|(?<!\w)_([^_\n]+)_(?!\w)"), r"\1\2"),
    (re.compile(r"^#{1,6}\s+", re.MULTILINE), ""),
    (re.compile(r"\n{3,}"), "\n\n"),
)


def strip_markdown(text: str) -> str:
    """A text without the marks of Markdown, for platforms that show them as they are."""
    for pattern, plain in _MARKDOWN:
        text = pattern.sub(plain, text)
    return text.strip()


def __getattr__(name: str) -> Any:
    if name.startswith("cache_") and name.endswith("_from_url"):
        raise ImportError(f"{name!r} needs the messaging platforms of Hermes Agent, which toolcrib does not have yet")
    raise AttributeError(f"module 'gateway.platforms.base' has no attribute {name!r}")
