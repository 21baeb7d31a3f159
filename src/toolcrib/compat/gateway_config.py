"""`gateway.config`: messaging platforms and their settings, as values. toolcrib does not serve any of them yet."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from toolcrib.compat.utils import is_truthy_value


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
            enabled=is_truthy_value(data.get("enabled")),
            token=data.get("token"),
            api_key=data.get("api_key"),
            home_channel=HomeChannel.from_dict(channel) if channel else None,
            reply_to_mode=str(data.get("reply_to_mode") or "first"),
            gateway_restart_notification=is_truthy_value(data.get("gateway_restart_notification"), True),
            typing_indicator=is_truthy_value(data.get("typing_indicator"), True),
            typing_status_text=data.get("typing_status_text"),
            channel_overrides=dict(data.get("channel_overrides") or {}),
            extra=dict(data.get("extra") or {}),
        )
