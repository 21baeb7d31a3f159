"""What the runs of one agent share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from toolcrib.agent.auxiliary import AuxiliaryModel
from toolcrib.agent.compress import compress
from toolcrib.agent.conversation import Conversation
from toolcrib.agent.events import Compressed
from toolcrib.agent.host import McpServerWatcher
from toolcrib.agent.tool_selection import ToolSelection
from toolcrib.config.settings import Settings
from toolcrib.core.errors import UsageError
from toolcrib.core.models import ModelProfile, Provider
from toolcrib.runtime import Runtime


@dataclass(kw_only=True)
class Surroundings:
    """What the runs of one agent work with."""

    runtime: Runtime
    settings: Settings
    conversation: Conversation
    offer: ToolSelection
    servers: McpServerWatcher
    provider: Provider
    model: str
    auxiliary: AuxiliaryModel
    system: str
    platform: str
    cwd: str
    max_turns: int
    max_calls: int
    dry_run: bool = False
    steering: deque[str] = field(default_factory=deque)
    plan: Callable[[], str] = lambda: ""
    """The agent's plan, to be put back after a summary."""
    changed_paths: Callable[[], list[str]] = list
    is_first_run: bool = True

    def __post_init__(self) -> None:
        if self.max_turns < 1 or self.max_calls < 0:
            raise UsageError(
                f"a budget of {self.max_turns} turns and {self.max_calls} calls leaves nothing to do; "
                "give at least one turn"
            )

    @property
    def profile(self) -> ModelProfile:
        return self.provider.profile(self.model)

    async def compress(self, topic: str = "") -> Compressed | None:
        """Let a summary stand for the older part of the conversation; None when it is too short for that."""
        return await compress(
            self.conversation,
            self.auxiliary,
            keep_messages=self.settings.compression.keep_messages,
            topic=topic,
            plan=self.plan(),
            transcript_chars=self.profile.context_window * 2,
        )
