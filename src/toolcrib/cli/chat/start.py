"""Opens what a chat works with: the host of this home, and the agent that the options ask for."""

from __future__ import annotations

from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost, Asker
from toolcrib.api import adopt_runtime
from toolcrib.cli.chat.options import ChatOptions
from toolcrib.cli.output import stdout_reserved
from toolcrib.cli.state import refuse_unknown_toolsets
from toolcrib.config.settings import Settings
from toolcrib.core.models import Provider
from toolcrib.core.ports import Approver
from toolcrib.registry.default import registry


def open_workshop(options: ChatOptions, approver: Approver, asker: Asker | None, settings: Settings) -> AgentHost:
    """The host for a person at a terminal, with all tools loaded; what tool files print goes to stderr."""
    host = AgentHost(
        settings=settings,
        entry_point="interactive",
        approver=approver,
        asker=asker,
        yolo=options.yolo,
        workspace=options.cwd,
        registry=registry,
        platform="cli",
        model=options.model,
        provider=options.provider,
    )
    # Tools that call other tools through the package's functions must meet the same gate and the same records.
    adopt_runtime(host.runtime)
    with stdout_reserved():
        host.runtime.load()
    refuse_unknown_toolsets(host.runtime)
    return host


def open_agent(host: AgentHost, options: ChatOptions) -> Agent:
    """The agent that the options ask for, new or resumed."""
    return Agent(
        host=host,
        toolsets=options.toolsets,
        disabled_toolsets=options.disabled_toolsets,
        session_id=options.resume,
        max_turns=options.max_turns,
        cwd=options.cwd,
        dry_run=options.dry_run,
    )


def is_default_model(provider: Provider, options: ChatOptions, host: AgentHost) -> bool:
    """Whether the small model of this machine answers because nothing else was chosen."""
    model = host.settings.model
    asked_for = options.model or options.provider or model.default or model.provider
    return provider.name == "embedded" and not asked_for


DEFAULT_MODEL_LINE = (
    "No model is configured, so a small one on this machine answers; it is slow and knows little. "
    "`toolcrib setup` connects a better one."
)
