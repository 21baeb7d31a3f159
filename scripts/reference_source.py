"""Reads the package's source for the reference: public names with their signatures and docstrings, as Markdown."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
GENERATED = "<!-- Written by scripts/write_reference.py from the code; change the code, then type `make docs`. -->\n"
MAX_LINE = 100

# What tool authors and callers may rely on, by the module to import it from and the file that defines it.
PUBLIC_API: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("toolcrib", "registry/decorator.py", ("tool",)),
    ("toolcrib", "api.py", ("get_tool_definitions", "handle_function_call")),
    ("toolcrib", "agent/agent.py", ("Agent",)),
    ("toolcrib", "agent/host.py", ("AgentHost",)),
    ("toolcrib", "runtime.py", ("Runtime",)),
    ("toolcrib", "core/context.py", ("ToolContext",)),
    ("toolcrib", "core/types.py", ("ToolResult", "Effect")),
    ("toolcrib.agent.agent", "agent/agent.py", ("run_sync",)),
    ("toolcrib.core.context", "core/context.py", ("Asker",)),
    (
        "toolcrib.agent.events",
        "agent/events.py",
        (
            "RunResult",
            "RunStarted",
            "TurnStarted",
            "TextStreamed",
            "ReasoningStreamed",
            "Notified",
            "MessageAdded",
            "CallStarted",
            "CallProgressed",
            "ModelProgressed",
            "CallFinished",
            "Compressed",
            "Steered",
            "SubagentProgressed",
            "RunEnded",
        ),
    ),
    ("toolcrib.core.messages", "core/messages.py", ("Message", "RequestedCall", "Text", "Image", "user_message")),
    (
        "toolcrib.core.models",
        "core/models.py",
        ("Provider", "ModelProfile", "ModelRequest", "ModelResponse", "Usage", "Notice", "ModelError"),
    ),
    ("toolcrib.core.approvals", "core/approvals.py", ("ApprovalRequest", "ApprovalAnswer")),
    ("toolcrib.approval.provenance", "approval/provenance.py", ("Provenance",)),
    ("toolcrib.core.origins", "core/origins.py", ("ValueOrigin", "ValueFinding")),
    ("toolcrib.core.types", "core/types.py", ("ToolCall", "Unavailable", "Verdict")),
    ("toolcrib.core.cancel", "core/cancel.py", ("CancelToken",)),
    ("toolcrib.core.context", "core/context.py", ("Services", "FrontEndTerminal", "FrontEndTerminals")),
    ("toolcrib.core.ports", "core/ports.py", ("Approver", "Gate", "Recorder", "ResultStore")),
    ("toolcrib.registry", "registry/registry.py", ("ToolRegistry",)),
    ("toolcrib.registry", "core/types.py", ("ToolEntry",)),
    ("toolcrib.registry", "registry/results.py", ("tool_result", "tool_error")),
    ("toolcrib.registry", "registry/discovery.py", ("discover_builtin_tools",)),
    ("toolcrib.hooks.manager", "hooks/manager.py", ("HookManager",)),
    ("toolcrib.plugins.context", "plugins/context.py", ("PluginContext",)),
    ("toolcrib.definitions.dialects", "definitions/dialects/render.py", ("render", "Rendered", "SkippedTool")),
    ("toolcrib.providers.create", "providers/create.py", ("create_provider",)),
    ("toolcrib.sessions.store", "sessions/store.py", ("SessionStore",)),
    ("toolcrib.sessions.records", "sessions/records.py", ("Session", "StoredMessage")),
    ("toolcrib.undo.history", "undo/history.py", ("FileHistory", "UndoResult")),
    ("toolcrib.undo.records", "undo/records.py", ("CallRecord", "FileRecord")),
    ("toolcrib.testing", "providers/scripted.py", ("ScriptedProvider", "says", "calls", "call")),
    ("toolcrib.testing", "testing/__init__.py", ("isolated_runtime", "ScriptedApprover", "ListRecorder")),
    (
        "toolcrib.testing.model_server",
        "testing/model_server.py",
        ("ScriptedModelServer", "ReceivedRequest", "ErrorResponse", "Stream", "RawResponse"),
    ),
    ("toolcrib.toolsets.catalog", "toolsets/catalog.py", ("create_custom_toolset",)),
    (
        "toolcrib.toolsets.distributions",
        "toolsets/distributions.py",
        ("sample_toolsets_from_distribution", "get_distribution", "list_distributions"),
    ),
)


def python_api() -> Iterator[str]:
    yield "# Python API\n"
    yield "What may be relied upon. `import toolcrib` itself loads nothing; each name is loaded on first use.\n"
    module = ""
    for import_from, file, names in PUBLIC_API:
        if import_from != module:
            module = import_from
            yield f"## {module}\n"
        tree = _parsed(file)
        for name in names:
            yield from _definition(name, _definitions_of(name, tree))


def _definition(name: str, nodes: list[ast.stmt]) -> Iterator[str]:
    node = nodes[-1]
    yield f"### {name}\n"
    if isinstance(node, ast.ClassDef):
        yield from _class(node)
        return
    shown = [found for found in nodes if _is_overload(found)] or nodes
    yield "```python"
    yield from (_signature(found) for found in shown)
    yield "```\n"
    yield _docstring(node) + "\n"


def _class(node: ast.ClassDef) -> Iterator[str]:
    yield _docstring(node) + "\n"
    docs = _docs_in(node)
    fields = [
        (f"`{item.target.id}`", f"`{ast.unparse(item.annotation)}`", docs.get(item.target.id, ""))
        for item in node.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    if fields:
        yield from table(("field", "type", "meaning"), fields)
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
    public = [item for item in methods if item.name == "__init__" or not item.name.startswith("_")]
    for method in public:
        if method.name == "__init__" and not method.args.kwonlyargs:
            continue
        yield "```python"
        yield _signature(method)
        yield "```\n"
        if _docstring(method):
            yield _docstring(method) + "\n"


def _signature(node: ast.stmt) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    returns = ast.unparse(node.returns) if node.returns else "Any"
    if any(isinstance(decorator, ast.Name) and decorator.id == "property" for decorator in node.decorator_list):
        return f"{node.name}: {returns}"
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    parameters = _parameters(node.args)
    line = f"{word} {node.name}({', '.join(parameters)}) -> {returns}"
    if len(line) <= MAX_LINE:
        return line
    return "\n".join([f"{word} {node.name}(", *(f"    {parameter}," for parameter in parameters), f") -> {returns}"])


def _parameters(args: ast.arguments) -> list[str]:
    """The parameters as one would write them, without `self`."""
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults))
    written = [_parameter(one, default) for one, default in zip(positional, [*defaults, *args.defaults], strict=True)]
    if args.posonlyargs:
        written.insert(len(args.posonlyargs), "/")
    if args.vararg is not None:
        written.append(f"*{_parameter(args.vararg, None)}")
    elif args.kwonlyargs:
        written.append("*")
    written += [_parameter(one, default) for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    if args.kwarg is not None:
        written.append(f"**{_parameter(args.kwarg, None)}")
    return [parameter for parameter in written if parameter != "self"]


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    hint = f": {ast.unparse(parameter.annotation)}" if parameter.annotation else ""
    if default is None:
        return parameter.arg + hint
    return f"{parameter.arg}{hint} = {ast.unparse(default)}" if hint else f"{parameter.arg}={ast.unparse(default)}"


def _is_overload(node: ast.stmt) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(isinstance(decorator, ast.Name) and decorator.id == "overload" for decorator in decorators)


def attribute_docs(file: str, class_name: str) -> dict[str, str]:
    """The texts under the attributes of a class."""
    return _docs_in(_definitions_of(class_name, _parsed(file))[-1])


def class_summary(file: str, class_name: str) -> str:
    """The first line of a class's docstring."""
    return _docstring(_definitions_of(class_name, _parsed(file))[-1]).split("\n")[0]


def _docs_in(node: ast.stmt) -> dict[str, str]:
    body: Sequence[ast.stmt] = getattr(node, "body", [])
    docs = {}
    for item, following in pairwise(body):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[item.target.id] = " ".join(str(following.value.value).split())
    return docs


def _parsed(file: str) -> ast.Module:
    return ast.parse((SOURCE / "toolcrib" / file).read_text(encoding="utf-8"))


def _definitions_of(name: str, tree: ast.Module) -> list[ast.stmt]:
    found = [node for node in tree.body if getattr(node, "name", "") == name]
    if not found:
        raise SystemExit(f"scripts/reference_source.py names {name!r}, which is gone; correct PUBLIC_API there")
    return list(found)


def _docstring(node: ast.stmt) -> str:
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    return "\n\n".join(f"```python\n{text}\n```" if _is_code(text) else text for text in paragraphs)


def _is_code(paragraph: str) -> bool:
    """Whether a paragraph of a docstring is an example: several lines, indented or understood by Python."""
    if "\n" not in paragraph:
        return False
    try:
        ast.parse(paragraph)
    except SyntaxError:
        return "\n    " in paragraph
    return True


def names(words: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in words)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heading)} |"
    yield f"|{'|'.join('---' for _ in heading)}|"
    for row in rows:
        yield f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in row)} |"
    yield ""
