"""`tools.file_tools`, `tools.todo_tool` and the other modules of built-in tools: the tools as functions.

Each runs the tool of the default runtime through its whole pipeline. The tools of the agent loop work on the state of a
running agent; as functions they take that state as an argument, as in the reference.
"""

# The parameters are the reference's, also those that nothing here depends on.
# ruff: noqa: ARG001
from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from toolcrib.api import default_runtime, handle_function_call
from toolcrib.core.errors import ToolcribError
from toolcrib.core.types import JsonObject
from toolcrib.registry.default import registry
from toolcrib.registry.results import tool_error, tool_result
from toolcrib.sessions.todo import TodoStore

__all__ = [
    "TodoStore",
    "browser_back",
    "browser_cdp",
    "browser_click",
    "browser_console",
    "browser_dialog",
    "browser_get_images",
    "browser_navigate",
    "browser_press",
    "browser_scroll",
    "browser_snapshot",
    "browser_type",
    "browser_vision",
    "check_clarify_requirements",
    "check_delegate_requirements",
    "check_memory_requirements",
    "check_session_search_requirements",
    "check_skills_requirements",
    "check_todo_requirements",
    "clarify_tool",
    "cronjob",
    "delegate_task",
    "execute_code",
    "image_generate_tool",
    "memory_tool",
    "mixture_of_agents_tool",
    "patch_tool",
    "read_file_tool",
    "registry",
    "search_tool",
    "session_search",
    "skill_manage",
    "skill_view",
    "skills_list",
    "text_to_speech_tool",
    "todo_tool",
    "transcribe_audio",
    "video_analyze_tool",
    "vision_analyze_tool",
    "web_extract_tool",
    "web_search_tool",
    "write_file_tool",
]

SANDBOX_AVAILABLE = True
_SCHEMAS = {
    **{
        f"BROWSER_{act.upper()}_SCHEMA": f"browser_{act}"
        for act in "back cdp click console dialog get_images navigate press scroll snapshot type vision".split()  # noqa: SIM905
    },
    "CLARIFY_SCHEMA": "clarify",
    "CRONJOB_SCHEMA": "cronjob",
    "DELEGATE_TASK_SCHEMA": "delegate_task",
    "EXECUTE_CODE_SCHEMA": "execute_code",
    "MEMORY_SCHEMA": "memory",
    "PATCH_SCHEMA": "patch",
    "READ_FILE_SCHEMA": "read_file",
    "SEARCH_FILES_SCHEMA": "search_files",
    "SESSION_SEARCH_SCHEMA": "session_search",
    "SKILLS_LIST_SCHEMA": "skills_list",
    "SKILL_MANAGE_SCHEMA": "skill_manage",
    "SKILL_VIEW_SCHEMA": "skill_view",
    "TODO_SCHEMA": "todo",
    "VIDEO_ANALYZE_SCHEMA": "video_analyze",
    "VISION_ANALYZE_SCHEMA": "vision_analyze",
    "WEB_EXTRACT_SCHEMA": "web_extract",
    "WEB_SEARCH_SCHEMA": "web_search",
    "WRITE_FILE_SCHEMA": "write_file",
}


def read_file_tool(path: str, offset: int = 1, limit: int = 500, task_id: str = "default") -> str:
    return _call("read_file", {"path": path, "offset": offset, "limit": limit}, task_id)


def write_file_tool(
    path: str, content: str, task_id: str = "default", cross_profile: bool = False, session_id: str | None = None
) -> str:
    return _call("write_file", {"path": path, "content": content}, task_id, session_id)


def patch_tool(
    mode: str = "replace",
    path: str | None = None,
    old_string: str | None = None,
    new_string: str | None = None,
    replace_all: bool = False,
    patch: str | None = None,
    task_id: str = "default",
    cross_profile: bool = False,
    session_id: str | None = None,
) -> str:
    args = {"mode": mode, "path": path, "old_string": old_string, "new_string": new_string, "patch": patch}
    return _call("patch", {**args, "replace_all": replace_all or None}, task_id, session_id)


def search_tool(
    pattern: str,
    target: str = "content",
    path: str = ".",
    file_glob: str | None = None,
    limit: int = 50,
    offset: int = 0,
    output_mode: str = "content",
    context: int = 0,
    task_id: str = "default",
) -> str:
    args = {"pattern": pattern, "target": target, "path": path, "file_glob": file_glob, "limit": limit}
    more = {"offset": offset or None, "output_mode": output_mode, "context": context or None}
    return _call("search_files", {**args, **more}, task_id)


def notify_other_tool_call(task_id: str = "default") -> None:
    """Told about each call of another tool in a task. Nothing depends on it: repeated reads are noticed elsewhere."""


def reset_file_dedup(task_id: str | None = None) -> None:
    """Let a task read unchanged files again in full. Here it always may."""


def clear_file_ops_cache(task_id: str | None = None) -> None:
    """Forget the file access of a task. Here a session's environment is looked up for each call."""


def execute_code(code: str, task_id: str | None = None, enabled_tools: list[str] | None = None) -> str:
    return str(handle_function_call("execute_code", {"code": code}, task_id, enabled_tools=enabled_tools))


def skills_list(category: str | None = None, task_id: str | None = None) -> str:
    return _call("skills_list", {"category": category}, task_id)


def skill_view(name: str, file_path: str | None = None, task_id: str | None = None, preprocess: bool = True) -> str:
    return _call("skill_view", {"name": name, "file_path": file_path}, task_id)


def skill_manage(
    action: str,
    name: str,
    content: str | None = None,
    category: str | None = None,
    file_path: str | None = None,
    file_content: str | None = None,
    old_string: str | None = None,
    new_string: str | None = None,
    replace_all: bool = False,
    absorbed_into: str | None = None,
) -> str:
    args = {"action": action, "name": name, "content": content, "category": category, "file_path": file_path}
    change = {"file_content": file_content, "old_string": old_string, "new_string": new_string}
    return _call("skill_manage", {**args, **change, "replace_all": replace_all or None, "absorbed_into": absorbed_into})


def cronjob(action: str, job_id: str | None = None, **options: Any) -> str:
    return _call("cronjob", {"action": action, "job_id": job_id, **options}, options.pop("task_id", None))


def clarify_tool(
    question: str, choices: Sequence[str] | None = None, callback: Callable[..., str] | None = None
) -> str:
    """Ask the person through `callback(question, choices)`; without one, through the front end of the runtime."""
    if callback is None:
        return _call("clarify", {"question": question, "choices": list(choices) if choices else None})
    if not question.strip():
        return tool_error("the question is empty; say what to ask")
    offered = [str(choice).strip() for choice in choices or () if str(choice).strip()] or None
    answer = callback(question.strip(), offered)
    return tool_result(question=question.strip(), choices_offered=offered, user_response=str(answer).strip())


def todo_tool(todos: list[JsonObject] | None = None, merge: bool = False, store: TodoStore | None = None) -> str:
    """Read or write the plan in `store`."""
    if store is None:
        return tool_error("todo must be handled by the agent loop; pass store=TodoStore()")
    if todos is not None:
        store.write(todos, merge)
    return tool_result(store.answer())


def memory_tool(
    action: str | None = None,
    target: str = "memory",
    content: str | None = None,
    old_text: str | None = None,
    operations: list[JsonObject] | None = None,
    store: Any = None,
) -> str:
    """Change the memory of the home; `store` is there for callers of the reference and not needed."""
    args = {"action": action, "target": target, "content": content, "old_text": old_text, "operations": operations}
    return _call("memory", args)


def session_search(
    query: str = "",
    role_filter: str | None = None,
    limit: int = 3,
    db: Any = None,
    current_session_id: str | None = None,
    session_id: str | None = None,
    around_message_id: int | None = None,
    window: int = 5,
    sort: str | None = None,
    profile: str | None = None,
) -> str:
    args = {"query": query or None, "role_filter": role_filter, "limit": limit, "session_id": session_id, "sort": sort}
    return _call("session_search", {**args, "around_message_id": around_message_id, "window": window})


def delegate_task(
    goal: str | None = None,
    context: str | None = None,
    tasks: list[JsonObject] | None = None,
    max_iterations: int | None = None,
    role: str | None = None,
    background: bool | None = None,
    parent_agent: Any = None,
) -> str:
    return _call("delegate_task", {"goal": goal, "context": context, "tasks": tasks, "role": role})


def web_search_tool(query: str, limit: int = 5) -> str:
    return _call("web_search", {"query": query, "limit": limit})


async def web_extract_tool(urls: list[str], format: str | None = None, char_limit: int | None = None) -> str:
    return await _acall("web_extract", {"urls": urls, "char_limit": char_limit})


async def vision_analyze_tool(image_url: str, user_prompt: str, model: str | None = None) -> str:
    return await _acall("vision_analyze", {"image_url": image_url, "question": user_prompt})


async def video_analyze_tool(video_url: str, user_prompt: str, model: str | None = None) -> str:
    return await _acall("video_analyze", {"video_url": video_url, "question": user_prompt})


def browser_navigate(url: str, task_id: str | None = None) -> str:
    return _call("browser_navigate", {"url": url}, task_id)


def browser_snapshot(full: bool = False, task_id: str | None = None) -> str:
    return _call("browser_snapshot", {"full": full}, task_id)


def browser_click(ref: str, task_id: str | None = None) -> str:
    return _call("browser_click", {"ref": ref}, task_id)


def browser_type(ref: str, text: str, task_id: str | None = None) -> str:
    return _call("browser_type", {"ref": ref, "text": text}, task_id)


def browser_scroll(direction: str, task_id: str | None = None) -> str:
    return _call("browser_scroll", {"direction": direction}, task_id)


def browser_back(task_id: str | None = None) -> str:
    return _call("browser_back", {}, task_id)


def browser_press(key: str, task_id: str | None = None) -> str:
    return _call("browser_press", {"key": key}, task_id)


def browser_get_images(task_id: str | None = None) -> str:
    return _call("browser_get_images", {}, task_id)


def browser_vision(question: str, annotate: bool = False, task_id: str | None = None) -> str:
    return _call("browser_vision", {"question": question, "annotate": annotate}, task_id)


def browser_console(clear: bool = False, expression: str | None = None, task_id: str | None = None) -> str:
    return _call("browser_console", {"clear": clear, "expression": expression}, task_id)


def browser_cdp(
    method: str,
    params: JsonObject | None = None,
    target_id: str | None = None,
    frame_id: str | None = None,
    timeout: float | None = None,
    task_id: str | None = None,
) -> str:
    args = {"method": method, "params": params, "target_id": target_id, "frame_id": frame_id, "timeout": timeout}
    return _call("browser_cdp", args, task_id)


def browser_dialog(
    action: str, prompt_text: str | None = None, dialog_id: str | None = None, task_id: str | None = None
) -> str:
    return _call("browser_dialog", {"action": action, "prompt_text": prompt_text, "dialog_id": dialog_id}, task_id)


def image_generate_tool(
    prompt: str,
    aspect_ratio: str = "landscape",
    image_url: str | None = None,
    reference_image_urls: list[str] | None = None,
) -> str:
    args = {"prompt": prompt, "aspect_ratio": aspect_ratio, "image_url": image_url}
    return _call("image_generate", {**args, "reference_image_urls": reference_image_urls})


def text_to_speech_tool(text: str, output_path: str | None = None) -> str:
    return _call("text_to_speech", {"text": text, "output_path": output_path})


async def mixture_of_agents_tool(user_prompt: str) -> str:
    return await _acall("mixture_of_agents", {"user_prompt": user_prompt})


def transcribe_audio(file_path: str, model: str | None = None) -> JsonObject:
    """What is said in an audio file of this machine, as `transcript`; `error` if that cannot be found out."""
    runtime = default_runtime()

    async def transcribe() -> tuple[str, str]:
        data = await asyncio.to_thread(Path(file_path).read_bytes)
        # Whoever calls this function runs in our process, and chose to.
        return await runtime.services.speech.transcribe(data, may_send=True)

    try:
        text, listener = runtime.bridge.run(transcribe())
    except (ToolcribError, OSError) as error:
        return {"success": False, "transcript": "", "error": str(error)}
    return {"success": True, "transcript": text, "provider": listener}


def _always() -> bool:
    """Whether the tool can be used: always, because toolcrib brings all that it needs."""
    return True


check_clarify_requirements = check_delegate_requirements = check_memory_requirements = _always
check_session_search_requirements = check_skills_requirements = check_todo_requirements = _always


_CHECKS = {
    "_browser_cdp_check": "browser_cdp",
    "_browser_dialog_check": "browser_dialog",
    "_check_feishu": "feishu_doc_read",
    "_check_file_reqs": "read_file",
    "_check_ha_available": "ha_get_state",
    "_check_kanban_mode": "kanban_show",
    "_check_kanban_orchestrator_mode": "kanban_list",
    "_check_spotify_available": "spotify_playback",
    "_check_xai_video_requirements": "xai_video_edit",
    "check_browser_requirements": "browser_navigate",
    "check_browser_vision_requirements": "browser_vision",
    "check_close_terminal_requirements": "close_terminal",
    "check_computer_use_requirements": "computer_use",
    "check_cronjob_requirements": "cronjob",
    "check_discord_tool_requirements": "discord",
    "check_image_generation_requirements": "image_generate",
    "check_read_terminal_requirements": "read_terminal",
    "check_sandbox_requirements": "execute_code",
    "check_tts_requirements": "text_to_speech",
    "check_video_generation_requirements": "video_generate",
    "check_vision_requirements": "vision_analyze",
    "check_web_api_key": "web_search",
    "check_x_search_requirements": "x_search",
}
"""The checks of the reference's modules, each with the tool that it is about."""


@functools.cache
def _check_of(tool: str) -> Callable[[], bool]:
    return functools.partial(_is_available, tool)


def _is_available(name: str) -> bool:
    found = default_runtime().registry
    entry = found.get_entry(name)
    return entry is not None and bool(found.available([entry]))


def _call(name: str, args: JsonObject, task_id: str | None = None, session_id: str | None = None) -> str:
    given = {key: value for key, value in args.items() if value is not None}
    result = handle_function_call(name, given, task_id, session_id=session_id)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


async def _acall(name: str, args: JsonObject) -> str:
    # The reference's functions are coroutines, so their callers have a loop that must not be blocked.
    return await asyncio.to_thread(_call, name, args)


def __getattr__(name: str) -> JsonObject | Callable[[], bool]:
    if name in _CHECKS:
        return _check_of(_CHECKS[name])
    schema = registry.get_schema(_SCHEMAS[name]) if name in _SCHEMAS else None
    if schema is None:
        raise AttributeError(f"the modules of built-in tools have no attribute {name!r}")
    return schema
