"""`agent.memory_provider`: what plugins subclass to remember things beyond a session."""

# ruff: noqa: B027 - most methods may stay empty
from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class MemoryProvider(ABC):
    """A memory by one vendor. All but the abstract methods may stay as they are."""

    @property
    @abstractmethod
    def name(self) -> str:
        """A short name for the config."""

    @abstractmethod
    def is_available(self) -> bool:
        """Whether it can be used now; quick, without network."""

    @abstractmethod
    def initialize(self, session_id: str, **kwargs: Any) -> None:
        """Called once when a session starts."""

    @abstractmethod
    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """The tools that it offers to the model."""

    def system_prompt_block(self) -> str:
        """What it adds to the system prompt."""
        return ""

    def prefetch(self, query: str, *, session_id: str = "") -> str:
        """What it remembers about a question, before the model answers it."""
        return ""

    def queue_prefetch(self, query: str, *, session_id: str = "") -> None:
        """Prepare the next `prefetch` in the background."""

    def sync_turn(
        self,
        user_content: str,
        assistant_content: str,
        *,
        session_id: str = "",
        messages: list[dict[str, Any]] | None = None,
    ) -> None:
        """Remember one exchange."""

    def handle_tool_call(self, tool_name: str, args: dict[str, Any], **kwargs: Any) -> str:
        """The result of one of its tools, as JSON."""
        raise NotImplementedError(f"{self.name} does not handle the tool {tool_name!r}")

    def shutdown(self) -> None:
        """Called when the session ends for good."""

    def on_turn_start(self, turn_number: int, message: str, **kwargs: Any) -> None:
        """Called before each turn."""

    def on_session_end(self, messages: list[dict[str, Any]]) -> None:
        """Called after the last turn."""

    def on_session_switch(
        self,
        new_session_id: str,
        *,
        parent_session_id: str = "",
        reset: bool = False,
        rewound: bool = False,
        **kwargs: Any,
    ) -> None:
        """Called when the conversation goes on under another session."""

    def on_pre_compress(self, messages: list[dict[str, Any]]) -> str:
        """What a summary of these messages must not lose."""
        return ""

    def on_delegation(self, task: str, result: str, *, child_session_id: str = "", **kwargs: Any) -> None:
        """Called when a subagent is done."""

    def get_config_schema(self) -> list[dict[str, Any]]:
        """What the set-up wizard asks for."""
        return []

    def save_config(self, values: dict[str, Any], hermes_home: str) -> None:
        """Store what the set-up wizard was told."""

    def on_memory_write(self, action: str, target: str, content: str, metadata: dict[str, Any] | None = None) -> None:
        """Called when the built-in memory changes."""

    def backup_paths(self) -> list[str]:
        """The files of it that a backup should contain."""
        return []
