"""The script's own process: runs the script as `__main__` and gives it functions that call tools.

Sent as text to the environment; `supervisor.py` executes it before the script arrives.
"""
# ruff: noqa: UP031, PTH109, PLC0415, B905, RUF005 - for Python 3.7; rarely needed modules are imported on demand
# ruff: noqa: BLE001 - whatever a script raises is reported

from __future__ import annotations

import builtins
import json
import os
import resource
import shlex
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NAME = "script.py"
if sys.version_info >= (3, 14):
    # The new default reads the script's file in every child process, and there is none.
    import multiprocessing

    multiprocessing.set_start_method("fork")

MODULES = ("toolcrib_tools", "hermes_tools")
LONGEST_TEXT = 20000
LONGEST_CALL = 16 * 1024 * 1024
THREADS = 32


class ScriptSource:
    """The loader from which tracebacks get the lines of the script."""

    def __init__(self, code: str) -> None:
        self.code = code

    def get_source(self, _: str) -> str:
        return self.code


class Channel:
    """Tool calls from any thread of the script. One waiting thread reads for all of them."""

    def __init__(self, frame: Callable[[bytes, bytes], bytes], requests: int, results: int) -> None:
        self.frame, self.requests, self.results = frame, requests, results
        self.state = threading.Condition()
        self.number = 0
        self.answers: dict[int, dict[str, Any]] = {}
        self.is_reading = False
        self.held = bytearray()
        self.process = os.getpid()

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        if os.getpid() != self.process:
            raise RuntimeError("tools can only be called from the script's first process, not from a fork")
        if not isinstance(name, str):
            raise TypeError("the name of a tool must be a string, not %r" % (name,))
        with self.state:
            self.number += 1
            number = self.number
            text = json.dumps({"id": number, "name": name, "arguments": arguments}).encode("utf-8", "surrogatepass")
            if len(text) > LONGEST_CALL:
                raise ValueError(
                    "the arguments of a call may have at most %d bytes, not %d" % (LONGEST_CALL, len(text))
                )
            self.send(self.frame(b"C", text))
            while number not in self.answers:
                if self.is_reading:
                    self.state.wait()
                else:
                    self.read_one()
            return self.value(self.answers.pop(number))

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.requests, view) :]

    def read_one(self) -> None:
        self.is_reading = True
        self.state.release()
        try:
            self.read_to(5)
            end = 5 + int.from_bytes(self.held[1:5], "big")
            self.read_to(end)
        finally:
            self.state.acquire()
            self.is_reading = False
            self.state.notify_all()
        payload = self.held[5:end].decode("utf-8", "surrogatepass")
        self.held.clear()
        answer = json.loads(payload)
        self.answers[answer["id"]] = answer

    def read_to(self, length: int) -> None:
        # Keep what has arrived, in case a signal handler of the script raises here.
        while len(self.held) < length:
            more = os.read(self.results, min(length - len(self.held), 1048576))
            if not more:
                raise ConnectionError("the connection to toolcrib is gone; no tool can be called any more")
            self.held += more

    def value(self, answer: dict[str, Any]) -> Any:
        text = answer["content"]
        if isinstance(text, str) and text[:1] in ("{", "["):
            try:
                return json.loads(text)
            except ValueError:
                return text
        return text


class Tools:
    """What the script gets: a function per tool, and a few helpers."""

    def __init__(self, channel: Callable[[], Channel]) -> None:
        self.make_channel = channel
        self.made: list[Channel] = []
        self.making = threading.Lock()

    def call_tool(self, name: str, arguments: Any = None, **more: Any) -> Any:
        """Call a tool by its name."""
        with self.making:
            if not self.made:
                self.made.append(self.make_channel())
        return self.made[0].call(name, dict(arguments or {}, **more))

    def function(self, name: str, parameters: list[str]) -> Callable[..., Any]:
        def tool(*values: Any, **arguments: Any) -> Any:
            if len(values) > len(parameters):
                raise TypeError("%s() takes at most %d arguments: %s" % (name, len(parameters), ", ".join(parameters)))
            for parameter, value in zip(parameters, values):
                if parameter in arguments:
                    raise TypeError("%s() got two values for %r" % (name, parameter))
                arguments[parameter] = value
            return self.call_tool(name, arguments)

        tool.__name__ = tool.__qualname__ = name
        return tool

    def offered(self, tools: list[tuple[str, list[str]]]) -> dict[str, Any]:
        names: dict[str, Any] = {"call_tool": self.call_tool, "parallel": parallel}
        names.update({"json_parse": json_parse, "shell_quote": shell_quote, "retry": retry})
        for name, parameters in tools:
            if name.isidentifier():
                names[name] = self.function(name, parameters)
        return names


def parallel(*calls: Any) -> list[Any]:
    """Run callables, or tuples of a function and its arguments, concurrently; returns the results in order."""
    results: list[Any] = [None] * len(calls)
    errors: list[tuple[int, BaseException]] = []
    todo = list(enumerate(calls))[::-1]

    def work() -> None:
        while todo:
            try:
                index, call = todo.pop()
            except IndexError:
                return
            try:
                results[index] = call[0](*call[1:]) if isinstance(call, tuple) else call()
            except BaseException as error:
                errors.append((index, error))

    threads = [threading.Thread(target=work) for _ in calls[:THREADS]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise min(errors, key=lambda each: each[0])[1]
    return results


def json_parse(text: str) -> Any:
    return json.loads(text, strict=False)


def shell_quote(text: str) -> str:
    return shlex.quote(text)


def retry(function: Callable[[], Any], max_attempts: int = 3, delay: float = 2) -> Any:
    for _ in range(max_attempts - 1):
        try:
            return function()
        except Exception:
            time.sleep(delay)
    return function()


def set_limits(memory_bytes: int) -> None:
    wanted = [(resource.RLIMIT_CORE, 0)] + ([(resource.RLIMIT_AS, memory_bytes)] if memory_bytes else [])
    for kind, most in wanted:
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        try:
            resource.setrlimit(kind, (most, most))
        except (OSError, ValueError):
            pass


def prepared_main(order: dict[str, Any], offered: dict[str, Any]) -> Any:
    """The module of the script, and the modules from which it can import its tools."""
    main = type(sys)("__main__")
    main.__dict__.update({name: value for name, value in offered.items() if not hasattr(builtins, name)})
    main.__dict__.update({"__file__": NAME, "__loader__": ScriptSource(order["code"])})
    sys.modules["__main__"] = main
    for name in MODULES:
        module = type(sys)(name)
        module.__dict__.update(offered, __all__=sorted(offered))
        sys.modules[name] = module
    sys.argv[:] = [NAME]
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != order["hidden_folder"]]
    if not order["strict"]:
        sys.path.insert(0, os.getcwd())
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(  # type: ignore[union-attr]  # they are still the original streams
            line_buffering=True, errors="backslashreplace"
        )
    return main


def describe(error: BaseException, folder: str) -> str:
    """The exception as JSON, with the traceback reduced to the script and its project."""
    import traceback

    shown = traceback.TracebackException(type(error), error, error.__traceback__)
    seen: set[int] = set()
    todo: list[Any] = [shown]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        own = [line for line in one.stack if line.filename == NAME or line.filename.startswith(folder + os.sep)]
        one.stack = traceback.StackSummary.from_list(own)
        todo += [one.__cause__, one.__context__] + list(getattr(one, "exceptions", None) or ())
    fields = {"type": type(error).__name__, "message": str(error), "traceback": "".join(shown.format())}
    return json.dumps({name: shortened(text) for name, text in fields.items()})


def shortened(text: str) -> str:
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else text[:half] + "\n...\n" + text[-half:]


def run(order: dict[str, Any], frame: Callable[[bytes, bytes], bytes], requests: int, results: int) -> None:
    set_limits(order["memory_bytes"])
    folder = os.getcwd()
    tools = Tools(lambda: Channel(frame, requests, results))
    main = prepared_main(order, tools.offered(order["tools"]))
    try:
        exec(compile(order["code"], NAME, "exec", 0, True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        try:
            payload = describe(error, folder).encode("utf-8", "surrogatepass")
        except BaseException:
            # Out of memory, or the exception's own __str__ fails.
            payload = json.dumps({"type": type(error).__name__, "message": "", "traceback": ""}).encode()
        try:
            os.write(requests, frame(b"X", payload))
        except OSError:
            pass
        sys.exit(1)
