"""Which module answers to a name of the reference system, and what it offers."""

from __future__ import annotations

import json

import pytest

NAMES = {
    "tools": "",
    "tools.registry": (
        "registry ToolRegistry ToolEntry discover_builtin_tools invalidate_check_fn_cache tool_error tool_result "
        "_check_fn_cached _CHECK_FN_TTL_SECONDS _CHECK_FN_FAILURE_GRACE_SECONDS register_plugin_override_policy"
    ),
    "model_tools": (
        "get_tool_definitions handle_function_call coerce_tool_args TOOL_TO_TOOLSET_MAP TOOLSET_REQUIREMENTS "
        "get_all_tool_names get_toolset_for_tool get_available_toolsets check_toolset_requirements "
        "check_tool_availability _run_async _get_tool_loop _get_worker_loop _sanitize_tool_error "
        "_clear_tool_defs_cache _last_resolved_tool_names _AGENT_LOOP_TOOLS _LEGACY_TOOLSET_MAP "
        "_emit_post_tool_call_hook _compute_tool_definitions _coerce_number _TOOL_ERROR_MAX_LEN registry"
    ),
    "toolsets": (
        "TOOLSETS _HERMES_CORE_TOOLS get_toolset resolve_toolset resolve_multiple_toolsets get_all_toolsets "
        "get_toolset_names validate_toolset create_custom_toolset get_toolset_info bundle_non_core_tools"
    ),
    "toolset_distributions": (
        "DISTRIBUTIONS sample_toolsets_from_distribution get_distribution list_distributions validate_distribution "
        "print_distribution_info"
    ),
    "hermes_cli": "",
    "hermes_cli.plugins": (
        "discover_plugins get_plugin_manager invoke_hook has_hook invoke_middleware has_middleware "
        "resolve_pre_tool_block get_pre_tool_call_directive get_pre_tool_call_block_message "
        "set_thread_tool_whitelist clear_thread_tool_whitelist get_plugin_toolsets PluginContext PluginManager "
        "PluginToolOverrideError VALID_HOOKS"
    ),
    "hermes_cli.middleware": "MIDDLEWARE_SCHEMA_VERSION invoke_middleware has_middleware",
    "hermes_cli.config": (
        "OPTIONAL_ENV_VARS DEFAULT_CONFIG load_config save_config get_config_path get_env_path get_hermes_home "
        "get_env_value save_env_value"
    ),
    "hermes_constants": "get_hermes_home display_hermes_home",
    "tools.interrupt": "set_interrupt is_interrupted clear_current_thread_interrupt _interrupt_event",
    "tools.terminal_tool": (
        "terminal_tool register_task_env_overrides clear_task_env_overrides resolve_task_overrides record_session_cwd "
        "get_session_cwd clear_session_cwd get_active_env is_persistent_env cleanup_vm cleanup_all_environments "
        "check_terminal_requirements FOREGROUND_MAX_TIMEOUT TERMINAL_SCHEMA _get_env_config _create_environment "
        "_active_environments _interrupt_event"
    ),
    "tools.process_registry": "process_registry ProcessRegistry ProcessSession format_process_notification",
    "tools.thread_context": "propagate_context_to_thread",
    "tools.environments": "BaseEnvironment",
    "tools.environments.base": (
        "BaseEnvironment ProcessHandle set_activity_callback touch_activity_if_due get_sandbox_dir"
    ),
    "tools.environments.local": "LocalEnvironment",
    "tools.environments.docker": "DockerEnvironment",
    "tools.environments.ssh": "SSHEnvironment",
    "tools.environments.singularity": "SingularityEnvironment",
    "tools.environments.modal": "ModalEnvironment",
    "tools.environments.daytona": "DaytonaEnvironment",
    "tools.tool_search": "TOOL_SEARCH_NAME TOOL_DESCRIBE_NAME TOOL_CALL_NAME BRIDGE_TOOL_NAMES",
}


def test_every_name_can_be_imported(compat):
    """Each module of the reference system that exists here has the names that are touched from outside."""
    wanted = {module: names.split() for module, names in NAMES.items()}
    code = (
        "import importlib, json\n"
        f"wanted = json.loads({json.dumps(wanted)!r})\n"
        "missing = [f'{module}.{name}' for module, names in wanted.items() for name in names\n"
        "           if not hasattr(importlib.import_module(module), name)]\n"
        "print(missing)\n"
    )

    done = compat("-c", code)

    assert done.stdout == "[]\n", done.stderr


def test_declarations_are_the_very_same_objects(compat):
    """What one writes into the registry, the catalog or the variables under a reference name is ours at once."""
    code = (
        "from tools.registry import registry; from toolsets import TOOLSETS, _HERMES_CORE_TOOLS\n"
        "from hermes_cli.config import OPTIONAL_ENV_VARS; from toolset_distributions import DISTRIBUTIONS\n"
        "import model_tools, toolcrib.registry.default as ours, toolcrib.toolsets.catalog as catalog\n"
        "import toolcrib.config.env_vars as variables, toolcrib.toolsets.distributions as distributions\n"
        "print(registry is ours.registry is model_tools.registry, TOOLSETS is catalog.TOOLSETS,\n"
        "      _HERMES_CORE_TOOLS is catalog.CORE_TOOLS, OPTIONAL_ENV_VARS is variables.OPTIONAL_ENV_VARS,\n"
        "      DISTRIBUTIONS is distributions.DISTRIBUTIONS)\n"
    )

    done = compat("-c", code)

    assert set(done.stdout.split()) == {"True"}, done.stderr


def test_submodules_are_found_in_every_way_to_write_an_import(compat):
    """`import a.b`, `from a import b` and `import a.b as c` give the same module."""
    code = (
        "import tools.registry\nfrom tools import registry as one\nimport tools.registry as two\n"
        "from hermes_cli import plugins\nimport hermes_cli.plugins as three\n"
        "print(tools.registry is one is two, plugins is three)\n"
        "try:\n    from tools import no_such_thing\nexcept ImportError as error:\n    print(type(error).__name__)\n"
    )

    done = compat("-c", code)

    assert done.stdout == "True True\nImportError\n", done.stderr


@pytest.mark.parametrize(
    ("file", "statement"),
    [
        ("tools/__init__.py", "import tools as found"),
        ("toolsets.py", "import toolsets as found"),
        ("hermes_cli/__init__.py", "import hermes_cli as found"),
    ],
)
def test_real_module_wins(compat, tmp_path, file, statement):
    """A module of that name on `sys.path` is what an import gives; ours stands back."""
    real = tmp_path / "work" / file
    real.parent.mkdir(exist_ok=True)
    real.write_text("REAL = 'yes'\n")

    done = compat("-c", f"{statement}; print(found.REAL)")

    assert done.stdout == "yes\n", done.stderr


def test_mere_folder_is_no_module(compat, tmp_path):
    """Folders named like our modules hide none of them, and what is inside such a folder can be imported."""
    for folder in ("tools", "toolsets", "hermes_cli/plugins"):
        (tmp_path / "work" / folder).mkdir(parents=True)
    (tmp_path / "work" / "tools" / "mine.py").write_text("X = 1\n")
    (tmp_path / "work" / "toolsets" / "mine.py").write_text("X = 2\n")
    code = (
        "import tools.mine, toolsets.mine\n"
        "from toolsets import resolve_toolset\nfrom tools.registry import registry\nfrom tools import interrupt\n"
        "from hermes_cli.plugins import invoke_hook\n"
        "print(tools.mine.X, toolsets.mine.X, resolve_toolset('web'))\n"
    )

    done = compat("-c", code)

    assert done.stdout == "1 2 ['web_extract', 'web_search']\n", done.stderr


def test_names_are_unknown_until_asked_for(python):
    """Importing toolcrib, or asking it for definitions, imports no compatibility module and installs no name."""
    code = (
        "import sys, toolcrib\n"
        "toolcrib.get_tool_definitions()\n"
        "print([name for name in sys.modules if name.startswith('toolcrib.compat')])\n"
        "import model_tools\n"
    )

    done = python("-c", code)

    assert done.stdout == "[]\n"
    assert "No module named 'model_tools'" in done.stderr


def test_importing_model_tools_runs_discovery(compat, home):
    """`import model_tools` finds the built-in and the user's tools."""
    (home / "tools" / "mine.py").write_text(
        "from tools.registry import registry\n"
        "registry.register('mine', 'mine', {'description': 'd'}, lambda args, **kw: '')\n"
    )

    done = compat("-c", "import model_tools; print({'mine', 'todo'} <= set(model_tools.get_all_tool_names()))")

    assert done.stdout == "True\n", done.stderr


def test_plugin_imports_its_own_modules_as_part_of_a_package(compat, home):
    """`plugins.web.mine.provider` is a file of the plugin in the folder `mine`, as in the reference."""
    folder = home / "plugins" / "mine"
    folder.mkdir(parents=True)
    (folder / "plugin.yaml").write_text("name: web-mine\n")
    (folder / "provider.py").write_text("from plugins.web.mine import NAME\n\ndef hello(args, **kw): return NAME\n")
    (folder / "__init__.py").write_text(
        "NAME = 'mine'\n\ndef register(ctx):\n    from plugins.web.mine.provider import hello\n"
        "    ctx.register_tool('hello_mine', 'mine', {'description': 'x'}, hello)\n"
    )
    (home / "config.yaml").write_text("plugins:\n  enabled: [web-mine]\n")
    code = (
        "import model_tools\nfrom tools.registry import registry\n"
        "print(model_tools.handle_function_call('hello_mine', {}), registry.get_entry('hello_mine').source.kind)\n"
        "import importlib.util\nprint(importlib.util.find_spec('plugins.web.other'))\n"
    )

    done = compat("-c", code)

    assert done.stdout == "mine plugin\nNone\n", done.stderr
