"""`gateway.session_context`: the user and place of the current conversation, without process-wide variables."""

from __future__ import annotations

import os
from contextvars import ContextVar, Token

from toolcrib.core.context import current_context

_NAMES = (
    *("PLATFORM", "SOURCE", "CHAT_ID", "CHAT_NAME", "THREAD_ID", "USER_ID", "USER_NAME", "KEY", "ID", "MESSAGE_ID"),
    *("PROFILE", "CWD", "UI_SESSION_ID"),
)
_variables: dict[str, ContextVar[str]] = {
    f"HERMES_SESSION_{name}": ContextVar(f"toolcrib_session_{name.lower()}") for name in _NAMES
}
_async_delivery: ContextVar[bool] = ContextVar("toolcrib_session_async_delivery", default=True)

Tokens = list[Token[str]]


def get_session_env(name: str, default: str = "") -> str:
    """A fact about this conversation: as set for this context, else from the current call, else from a variable."""
    variable = _variables.get(name)
    found = variable.get(None) if variable is not None else None
    if found is not None:
        return found
    ctx = current_context.get()
    if ctx is not None and ctx.session_id and name in ("HERMES_SESSION_ID", "HERMES_SESSION_KEY"):
        return os.environ.get(name) or ctx.session_id
    return os.environ.get(name, default)


def set_session_vars(
    platform: str = "",
    source: str = "",
    chat_id: str = "",
    chat_name: str = "",
    thread_id: str = "",
    user_id: str = "",
    user_name: str = "",
    session_key: str = "",
    session_id: str = "",
    message_id: str = "",
    profile: str = "",
    cwd: str = "",
    async_delivery: bool = True,
    ui_session_id: str = "",
) -> Tokens:
    """Set the facts of this conversation, for this context only; an empty one hides the variable of the process."""
    _async_delivery.set(async_delivery)
    values = (
        *(platform, source, chat_id, chat_name, thread_id, user_id, user_name, session_key, session_id, message_id),
        *(profile, cwd, ui_session_id),
    )
    return [variable.set(value) for variable, value in zip(_variables.values(), values, strict=True)]


def clear_session_vars(tokens: Tokens) -> None:  # noqa: ARG001 - the facts are hidden, not those of before restored
    """Forget the facts of this conversation, so that nothing of it reaches what runs next in this context."""
    for variable in _variables.values():
        variable.set("")
    _async_delivery.set(True)


def reset_session_vars(tokens: Tokens) -> None:
    """Restore the facts from before `set_session_vars`."""
    for variable, token in zip(_variables.values(), tokens, strict=False):
        variable.reset(token)


def set_current_session_id(session_id: str) -> None:
    _variables["HERMES_SESSION_ID"].set(session_id)


def async_delivery_supported() -> bool:
    """Whether a message can reach this conversation after its answer."""
    return _async_delivery.get()
