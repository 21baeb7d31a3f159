"""Which imports of a file need parts of the reference system that toolcrib does not provide.

An import name is not the name of a package: `agent`, `utils` and `cli` on the package index have nothing to do with the
reference system. So a missing module is named for what it is, and a command to install something is shown only if it
is known to be the right one.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from toolcrib.core.attempt import attempt
from toolcrib.registry.compat_imports import AWAITED_MODULES, BUILTIN_TOOLS, COMPATIBILITY_MODULES, USER_TOOLS_NAMESPACE

REFERENCE_PACKAGES = frozenset(
    {
        *("acp_adapter", "agent", "batch_runner", "cli", "cron", "gateway", "hermes_bootstrap", "hermes_cli"),
        *("hermes_constants", "hermes_logging", "hermes_state", "hermes_time", "mcp_serve", "model_tools", "plugins"),
        *("providers", "run_agent", "tools", "toolset_distributions", "toolsets", "trajectory_compressor"),
        *("tui_gateway", "utils"),
    }
)
"""The top-level modules of Hermes Agent."""
_TOOL_MODULE_NAMES = """
ansi_strip approval async_delegation binary_extensions blueprints browser_camofox browser_camofox_state
browser_cdp_tool browser_dialog_tool browser_supervisor browser_tool budget_config checkpoint_manager
clarify_gateway clarify_tool close_terminal_tool code_execution_tool computer_use computer_use_tool credential_files
cronjob_tools daemon_pool debug_helpers delegate_tool delegation_live_log discord_tool env_passthrough env_probe
environments fal_common feishu_doc_tool feishu_drive_tool file_operations file_state file_tools fuzzy_match
homeassistant_tool hook_output_spill image_generation_tool image_source interrupt kanban_tools lazy_deps
managed_tool_gateway mcp_dashboard_oauth mcp_oauth mcp_oauth_manager mcp_stdio_watchdog mcp_tool memory_tool
microsoft_graph_auth microsoft_graph_client neutts_synth openrouter_client osv_check patch_parser path_security
process_registry project_tools read_extract read_terminal_tool registry schema_sanitizer send_message_tool
session_search_tool skill_manager_tool skill_provenance skill_usage skills_ast_audit skills_guard skills_hub
skills_sync skills_tool slash_confirm terminal_tool thread_context threat_patterns tirith_security todo_tool
tool_backend_helpers tool_output_limits tool_result_storage tool_search transcription_tools tts_tool url_safety
video_generation_tool vision_tools voice_mode web_tools website_policy write_approval x_search_tool xai_http
xai_video_tools yuanbao_tools
"""
_REFERENCE_TOOL_MODULES = frozenset(_TOOL_MODULE_NAMES.split())
"""The modules of its package `tools`, where users keep files of their own too."""

HERMES_PACKAGES = {
    "croniter": "croniter",
    "jinja2": "jinja2",
    "psutil": "psutil",
    "tenacity": "tenacity",
    "websockets": "websockets",
    "yaml": "PyYAML",
}
"""What the extra `hermes` installs, by import name: packages that files written for Hermes Agent take for granted."""
# Only modules whose package is beyond doubt, by import name.
_PACKAGES = {
    **{name: name for name in ("aiohttp", "anthropic", "httpx", "numpy", "openai", "pandas", "pydantic", "requests")},
    **{name: name for name in ("rich", "tqdm")},
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
}
_MISSING_NAME = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'")


def explain_missing_module(name: str) -> str:
    """Why a module cannot be imported, and what to do about it if that is known."""
    package, _, rest = name.partition(".")
    if name in AWAITED_MODULES:
        return f"it imports {name!r} for {AWAITED_MODULES[name]}, which toolcrib does not have yet"
    stem = rest.partition(".")[0]
    if package == USER_TOOLS_NAMESPACE or (package == "tools" and stem and stem not in _REFERENCE_TOOL_MODULES):
        return f"it imports {name!r}, which does not exist; put {stem}.py beside it"
    if package in REFERENCE_PACKAGES:
        return f"it imports {name!r}, an internal module of Hermes Agent that toolcrib does not provide"
    if package in HERMES_PACKAGES:
        return (
            f"it needs the package {HERMES_PACKAGES[package]!r}, which Hermes Agent brings with it; "
            "run `pip install 'toolcrib[hermes]'` and start again"
        )
    if package in _PACKAGES:
        command = f"pip install {_PACKAGES[package]}"
        return f"it imports {package!r}, which is not installed; install it (`{command}`) and start again"
    return (
        f"it imports {package!r}, which is not installed; install the package that provides it "
        "(the author of the file knows its name) and start again"
    )


def explain_missing_name(error: ImportError) -> str:
    """Why a name cannot be imported from a module under a reference name; "" for every other module."""
    found = _MISSING_NAME.match(str(error))
    if found is None:
        return ""
    module = _reference_name(found["module"])
    if module.partition(".")[0] not in REFERENCE_PACKAGES:
        return ""
    return (
        f"it imports {found['name']!r} from {module!r}, an internal name of Hermes Agent that toolcrib does not provide"
    )


def missing_internals(path: Path) -> list[str]:
    """The parts of the reference system that a tool file imports, now or when it runs, and that are not here.

    An import that the file guards with `except ImportError` is optional. Imports for type checkers do not count.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    found: list[str] = []
    for node in _required_imports(tree):
        if isinstance(node, ast.Import):
            found += [item.name for item in node.names if _is_internal(item.name) and not _has_module(item.name)]
        elif node.module and not node.level and _is_internal(node.module):
            found += _missing_from(node.module, [item.name for item in node.names])
    return list(dict.fromkeys(found))


def _required_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        elif isinstance(child, ast.Try) and any(_catches_imports(handler) for handler in child.handlers):
            for part in (*child.handlers, *child.orelse, *child.finalbody):
                yield from _required_imports(part)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for part in child.orelse:
                yield from _required_imports(part)
        else:
            yield from _required_imports(child)


def _catches_imports(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
    return any(isinstance(kind, ast.Name) and kind.id in names for kind in caught)


def _missing_from(module: str, names: list[str]) -> list[str]:
    if not _has_module(module):
        return [module]
    loaded, error = attempt(importlib.import_module, module)
    if error is not None:
        return [module]
    return [
        f"{module}.{name}"
        for name in names
        if name != "*" and not hasattr(loaded, name) and not _has_module(f"{module}.{name}")
    ]


def _has_module(name: str) -> bool:
    if name in AWAITED_MODULES:
        return False
    spec, error = attempt(importlib.util.find_spec, name)
    return error is None and spec is not None


def _is_internal(name: str) -> bool:
    return name.partition(".")[0] in REFERENCE_PACKAGES


def _reference_name(module: str) -> str:
    """The name that a file used for one of our modules."""
    if module == BUILTIN_TOOLS:
        return "tools"
    return next((name for name, real in COMPATIBILITY_MODULES.items() if real == module), module)
