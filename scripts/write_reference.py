"""Writes docs/reference from the code; with `--check`, only says which pages no longer agree with it."""

from __future__ import annotations

import argparse
import difflib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from msgspec import Meta
from reference_packages import package_map
from reference_source import (
    GENERATED,
    attribute_docs,
    class_summary,
    names,
    python_api,
    table,
)
from reference_tools import tool_pages

from toolcrib.cli import app
from toolcrib.config import (
    env_vars,
    load,
    schema,
    settings,
)
from toolcrib.config.section import Section
from toolcrib.core import errors
from toolcrib.hooks import specs
from toolcrib.toolsets import (
    catalog,
    distributions,
)
from toolcrib.toolsets.resolve import (
    NoRegistry,
    ToolsetResolver,
)

REPOSITORY = Path(__file__).resolve().parents[1]
REFERENCE = REPOSITORY / "docs" / "reference"
sys.path.insert(0, str(REPOSITORY / "src"))


OWN_VARIABLES = {
    "TOOLCRIB_HOME": "The folder that holds everything of one user; `~/.toolcrib` where unset.",
    "TOOLCRIB_MODEL_DIR": "The folder for the weights of embedded models; `~/.cache/toolcrib/models` where unset.",
    "TOOLCRIB_SAFE_MODE": "`1` loads no plugins at all.",
    "TOOLCRIB_SERVE_TOKEN": "The owner's token for `toolcrib serve`, instead of the one in the home.",
    "TOOLCRIB_ENABLE_PROJECT_PLUGINS": "`1` also looks for plugins in the project folder, like `plugins.project`.",
    "TOOLCRIB_YOLO": "`1` runs dangerous calls without approval in this process; catastrophic commands stay denied.",
    "TOOLCRIB_COMMAND_ID": "Set for every process of a command, so that toolcrib can find and end all of them.",
    "TOOLCRIB_HOOK_EVENT": "Set for a shell command that runs on an event: the name of the event.",
    "TOOLCRIB_MCP_DEPTH": "Set for MCP servers: how many toolcrib processes have started each other so far.",
    "TOOLCRIB_SANDBOX": "Set to `1` for commands in the `sandbox` backend.",
    "TOOLCRIB_KANBAN_TASK": "The card of the board that this process works on; it may finish no other.",
    "HERMES_KANBAN_TASK": "Read where `TOOLCRIB_KANBAN_TASK` is unset.",
    "HERMES_HOME": "Read where `TOOLCRIB_HOME` is unset; keys of its config that are unknown here are left alone.",
    "HERMES_SAFE_MODE": "Read where `TOOLCRIB_SAFE_MODE` is unset.",
    "HERMES_ENABLE_PROJECT_PLUGINS": "Read where `TOOLCRIB_ENABLE_PROJECT_PLUGINS` is unset.",
    "HERMES_YOLO_MODE": "Read where `TOOLCRIB_YOLO` is unset.",
    "TELEGRAM_WEBHOOK_URL": "Where Telegram delivers messages; `toolcrib serve` then needs `TELEGRAM_WEBHOOK_SECRET`.",
    "TELEGRAM_WEBHOOK_SECRET": "The secret of these deliveries: at least 32 characters, and no token of the API.",
    "HF_ENDPOINT": "A mirror of the model hub, for the weights of embedded models.",
    "OPENAI_BASE_URL": "Another address for the provider `openai`, as its own SDK reads it.",
    "ANTHROPIC_BASE_URL": "Another address for the provider `anthropic`, as its own SDK reads it.",
}


def pages() -> dict[str, str]:
    """Every page of the reference by its path there."""
    writers: dict[str, Callable[[], Iterator[str]]] = {
        "command-line.md": command_line,
        "config.md": config,
        "hooks.md": hooks,
        "toolsets.md": toolsets,
        "distributions.md": distributions_page,
        "environment.md": environment,
        "python-api.md": python_api,
        "errors.md": errors_page,
        "package-map.md": package_map,
    }
    found = {name: GENERATED + "\n".join(writer()).rstrip() + "\n" for name, writer in writers.items()}
    return found | {name: f"{text.rstrip()}\n" for name, text in tool_pages(REFERENCE)}


# The command line


def command_line() -> Iterator[str]:
    root = app.make_root()
    context = click.Context(root, info_name=app.PROGRAM)
    yield "# Command line\n"
    yield "Results go to stdout, everything else to stderr. Lists are tables on a terminal and plain text in a pipe;"
    yield "programs should use `--json`.\n"
    yield from table(
        ("exit code", "means"),
        [
            ("0", "done"),
            (str(app.FAILED), "it failed; a tool's error result counts as a failure, and is printed"),
            (str(click.UsageError.exit_code), "it did not run: an unknown name, wrong usage or a broken config"),
            ("3, 4", "`chat` only: the budget ran out; something it needed was denied"),
            (str(app.INTERRUPTED), "interrupted"),
        ],
    )
    yield from _command_pages(root, context)


def _command_pages(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _command_pages(command, inner)
            continue
        yield f"## {inner.command_path}\n"
        yield f"    {' '.join([inner.command_path, *command.collect_usage_pieces(inner)])}\n"
        yield _help_text(command) + "\n"
        rows = [_parameter_row(parameter, inner) for parameter in command.params]
        if rows:
            yield from table(("parameter", "meaning"), rows)


def _help_text(command: click.Command) -> str:
    paragraphs = inspect.cleandoc(command.help or "").split("\f")[0].split("\n\n")
    return "\n\n".join(_paragraph(text) for text in paragraphs)


def _paragraph(text: str) -> str:
    if text.startswith("\b"):
        return "\n".join(f"    {line}".rstrip() for line in text.splitlines()[1:])
    return " ".join(text.split())


def _parameter_row(parameter: click.Parameter, context: click.Context) -> tuple[str, str]:
    if isinstance(parameter, click.Argument):
        name = parameter.make_metavar(context)
        required = "required" if parameter.required else "optional"
        return f"`{name}`", getattr(parameter, "help", None) or required
    assert isinstance(parameter, click.Option)
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    value = "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
    return names + value, parameter.help or ""


# Settings


def config() -> Iterator[str]:
    yield "# Settings\n"
    yield "All of them stand in `config.yaml` in the home (`toolcrib config path` says where). An unknown key is an"
    yield "error that names the nearest one. `toolcrib config set KEY VALUE` checks and writes one; comments stay.\n"
    yield from table(("key", "type", "default", "meaning"), list(_setting_rows(settings.Settings, "")))
    outside = schema.all_settings(settings.Settings).keys() - schema.file_settings(settings.Settings).keys()
    docs = attribute_docs("config/settings.py", settings.Settings.__name__)
    yield "Not in the file:\n"
    yield from table(("setting", "meaning"), [(f"`{name}`", docs[name]) for name in docs if name in outside])


def _setting_rows(section: type[Section], prefix: str) -> Iterator[tuple[str, ...]]:
    file = section.__module__.removeprefix("toolcrib.").replace(".", "/") + ".py"
    docs = attribute_docs(file, section.__name__)
    defaults = section()
    for name, setting in schema.file_settings(section).items():
        key, expected = f"{prefix}{name}", setting.expected
        if schema.is_section(expected):
            yield from _setting_rows(expected, f"{key}.")
            continue
        yield f"`{key}`", _type_text(expected, setting.meta), f"`{_default_text(getattr(defaults, name))}`", docs[name]
        if get_origin(expected) is dict and schema.is_section(get_args(expected)[1]):
            yield from _setting_rows(get_args(expected)[1], f"{key}.NAME.")


def _type_text(expected: Any, meta: Meta) -> str:
    origin, arguments = get_origin(expected), get_args(expected)
    if origin is list:
        return f"list of {_plural(arguments[0])}"
    if origin is dict:
        return "mapping by name"
    if arguments:
        return " or ".join(f"`{choice}`" for choice in arguments)
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    limits = [
        f"{word} {limit}"
        for limit, word in ((meta.ge, "at least"), (meta.le, "at most"), (meta.gt, "above"))
        if limit is not None
    ]
    return ", ".join([names[expected], *limits])


def _plural(expected: Any) -> str:
    return {str: "names"}.get(expected, "values")


def _default_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value) if value != "" else '""'


# Hooks, toolsets, distributions, environment


def hooks() -> Iterator[str]:
    yield "# Hooks and middleware\n"
    yield "A callback receives, by keyword, only the arguments that it names. Every hook also gets"
    yield f"`telemetry_schema_version` (`{specs.TELEMETRY_SCHEMA_VERSION}`), every middleware"
    yield f"`middleware_schema_version` (`{specs.MIDDLEWARE_SCHEMA_VERSION}`).\n"
    yield "## Hooks\n"
    rows = [(f"`{hook.name}`", names(hook.keywords), hook.answer) for hook in specs.HOOKS.values()]
    yield from table(("hook", "arguments", "answer"), rows)
    yield "## Middleware\n"
    kinds = [(f"`{kind.kind}`", names(kind.keywords), kind.answer) for kind in specs.MIDDLEWARE.values()]
    yield from table(("kind", "arguments", "answer"), kinds)


def toolsets() -> Iterator[str]:
    resolver = ToolsetResolver(NoRegistry())
    short = {name: alias for alias, name in catalog.SHORT_NAMES.items()}
    yield "# Toolsets\n"
    yield "What the catalog says; a tool that no tool file, plugin or server here provides is not offered."
    yield "Tools that register into a toolset join it, `custom_toolsets` in the config adds to it or makes new ones,"
    yield "and `all` (or `*`) means everything.\n"
    core = ", ".join(f"`{name}`" for name in catalog.CORE_TOOLS)
    yield f"The core, which every full preset holds: {core}.\n"
    rows = []
    for name, entry in catalog.TOOLSETS.items():
        full = [*entry["tools"]] == catalog.CORE_TOOLS
        listed = "the core" if full else names(sorted(entry["tools"]))
        includes = names(entry["includes"])
        parts = "; ".join(part for part in (listed, f"includes {includes}" if includes else "") if part)
        alias = f", `{short[name]}`" if name in short else ""
        rows.append((f"`{name}`{alias}", entry["description"], parts, str(len(resolver.resolve(name)))))
    yield from table(("toolset", "for", "tools", "in all"), rows)


def distributions_page() -> Iterator[str]:
    yield "# Toolset distributions\n"
    yield "Mixtures from which a batch run samples the toolsets of each prompt: every toolset is rolled for on its own,"
    yield "with the chance given here in percent.\n"
    rows = []
    for name, mix in distributions.DISTRIBUTIONS.items():
        chances = ", ".join(f"{toolset} {percent}" for toolset, percent in mix["toolsets"].items())
        rows.append((f"`{name}`", mix["description"], chances))
    yield from table(("distribution", "for", "chances"), rows)


def environment() -> Iterator[str]:
    yield "# Environment variables\n"
    yield "## Of toolcrib itself\n"
    yield from table(("variable", "meaning"), [(f"`{name}`", text) for name, text in OWN_VARIABLES.items()])
    yield "## Of the terminal\n"
    yield "Each wins over the key of `config.yaml` beside it, and may stand in `.env` too. A list is written as JSON or"
    yield "with commas, a mapping as JSON. One that cannot be used is an error that names it.\n"
    yield from table(
        ("variable", "setting"),
        [(f"`{name}`", ", ".join(f"`terminal.{key}`" for key in keys)) for name, keys in load.VARIABLES.items()],
    )
    yield "## Keys and addresses that tools use\n"
    yield "`toolcrib setup` asks for these and keeps them in `.env` in the home, readable by its owner alone. Variables"
    yield "that are set already win over the file. Tool files and plugins add theirs to `OPTIONAL_ENV_VARS`.\n"
    rows = [
        (f"`{name}`", entry["description"], names(entry["tools"]), "hidden" if entry["password"] else "", entry["url"])
        for name, entry in sorted(env_vars.OPTIONAL_ENV_VARS.items())
    ]
    yield from table(("variable", "what for", "tools", "input", "where to get it"), rows)


# Errors


def errors_page() -> Iterator[str]:
    yield "# Errors\n"
    tree = inspect.cleandoc(errors.__doc__ or "").splitlines()
    yield "\n".join(tree) + "\n"
    rows = []
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.ToolcribError):
            rows.append((f"`{name}`", str(kind.exit_code), class_summary("core/errors.py", name)))
    yield from table(("error", "exit code", "meaning"), rows)


# Writing and checking


def drift(folder: Path) -> list[str]:
    """What differs between the pages and the code, one message for each page, with the first lines that differ."""
    wanted = pages()
    messages = []
    for name in sorted({*wanted, *(path.relative_to(folder).as_posix() for path in folder.rglob("*.md"))}):
        file = folder / name
        present = file.read_text(encoding="utf-8") if file.exists() else ""
        if name not in wanted:
            messages.append(f"docs/reference/{name} is written by nothing; remove it")
        elif present != wanted[name]:
            lines = difflib.unified_diff(
                present.splitlines(), wanted[name].splitlines(), "page", "code", lineterm="", n=0
            )
            messages.append("\n".join([f"docs/reference/{name} no longer agrees with the code:", *list(lines)[:12]]))
    return messages


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page has drifted")
    parser.add_argument("--folder", type=Path, default=REFERENCE, help="where the pages are")
    options = parser.parse_args(arguments)
    if options.check:
        messages = drift(options.folder)
        for message in messages:
            print(message, file=sys.stderr)
        if messages:
            print("Type `make docs` to write the reference anew.", file=sys.stderr)
        return 1 if messages else 0
    for name, text in pages().items():
        (options.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (options.folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
