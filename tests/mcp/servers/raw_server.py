"""An MCP server of the older protocol by hand, with the standard library alone: it can do everything wrong.

    raw_server.py '{"option": value}'

What it does wrong is said by the options, and by the tools that are called.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

OPTIONS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
OBJECT = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "echo", "description": "Gives back a text", "inputSchema": {
        "type": "object", "properties": {"text": {"type": "string"}}}, "annotations": {"readOnlyHint": True}},
    {"name": "write", "description": "Writes something", "inputSchema": OBJECT},
    *({"name": name, "description": f"The tool {name}", "inputSchema": OBJECT} for name in (
        "pid", "environ", "die", "fail", "stall", "refuse", "nonsense", "garbage", "flood_garbage", "flood_notices",
        "flood_errors", "long_line", "count", "slow", "wait_for_cancel", "progress", "cwd", "change", "children",
        "close_output", "unknown_ids", "big", "bad_output")),
]  # fmt: skip
lock = threading.Lock()
calls = 0
cancelled = threading.Event()


def send(message):
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def text(value):
    return {"content": [{"type": "text", "text": str(value)}]}


def listed():
    if "tools_file" in OPTIONS:
        with open(OPTIONS["tools_file"], encoding="utf-8") as stream:  # noqa: PTH123
            return json.load(stream)
    return OPTIONS.get("tools", TOOLS)


def flood(chunk, out):
    # Ends after a while, so that a test that fails leaves nothing behind.
    end = time.monotonic() + 20
    while time.monotonic() < end:
        out.write(chunk)


def run(name, arguments, request_id, params):
    global calls
    calls += 1
    if OPTIONS.get("die_every") and calls % OPTIONS["die_every"] == 0:
        os._exit(7)
    if name == "echo":
        return text(arguments.get("text"))
    if name == "pid":
        return text(os.getpid())
    if name == "cwd":
        return text(os.getcwd())  # noqa: PTH109
    if name == "environ":
        return text(json.dumps(dict(os.environ)))
    if name == "count":
        return text(calls)
    if name == "die":
        sys.stderr.write("about to die\n")
        sys.stderr.flush()
        os._exit(7)
    if name == "fail":
        return {**text("it did not work"), "isError": True}
    if name == "refuse":
        return None
    if name == "nonsense":
        return {"content": "no list", "isError": "perhaps"}
    if name == "bad_output":
        return {"content": [], "structuredContent": {"n": "no number"}}
    if name == "big":
        return text("x" * int(arguments.get("chars", 1000)))
    if name == "garbage":
        sys.stdout.write('this is no JSON\n{"half": \n\n[1, 2]\n\xff\n')
        return text("after the garbage")
    if name == "flood_garbage":
        flood("garbage " * 100 + "\n", sys.stdout)
    if name == "flood_notices":
        notice = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
        threading.Thread(target=flood, args=((json.dumps(notice) + "\n") * 100, sys.stdout), daemon=True).start()
        return text("flooding")
    if name == "flood_errors":
        threading.Thread(target=flood, args=("error " * 1000 + "\n", sys.stderr), daemon=True).start()
        return text("flooding")
    if name == "long_line":
        flood("x" * 1_000_000, sys.stdout)
    if name == "unknown_ids":
        for wrong in (999_999, "nobody", None):
            send({"jsonrpc": "2.0", "id": wrong, "result": {}})
        return text("after answers that nobody asked for")
    if name == "close_output":
        os.close(1)
        signal.pause()
    if name == "progress":
        token = params.get("_meta", {}).get("progressToken")
        for step in (1, 2):
            told = {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"}
            send({"jsonrpc": "2.0", "method": "notifications/progress", "params": told})
        return text("done")
    if name == "change":
        with open(OPTIONS["tools_file"], "w", encoding="utf-8") as stream:  # noqa: PTH123
            json.dump(arguments["tools"], stream)
        for _ in range(5):
            send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        return text("changed")
    if name == "children":
        inside = subprocess.Popen(["sleep", "600"])
        outside = subprocess.Popen(["sleep", "600"], start_new_session=True)
        return text(json.dumps([os.getpid(), inside.pid, outside.pid]))
    if name == "wait_for_cancel":
        return text(cancelled.wait(10))
    return text(f"no tool {name}")


def answer_call(message):
    params = message["params"]
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "stall":
        return
    if name == "slow":
        time.sleep(float(arguments.get("seconds", 0.5)))
        send({"jsonrpc": "2.0", "id": message["id"], "result": text("slow")})
        return
    result = run(name, arguments, message["id"], params)
    if result is None:
        send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32602, "message": "it is not allowed"}})
    else:
        send({"jsonrpc": "2.0", "id": message["id"], "result": result})


def answer(message):
    method = message.get("method")
    if method == "notifications/cancelled":
        cancelled.set()
    if "id" not in message or method is None or method in OPTIONS.get("stall_on", []):
        return
    if method == "initialize":
        capabilities = OPTIONS.get("capabilities", {"tools": {"listChanged": True}})
        info = {"name": "raw", "version": "1"}
        version = OPTIONS.get("protocol", "2025-11-25")
        result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
    elif method == "tools/list":
        result = {"tools": listed(), **OPTIONS.get("list_extra", {})}
    elif method == "ping":
        result = {}
    elif method == "tools/call":
        threading.Thread(target=answer_call, args=(message,), daemon=True).start()
        return
    else:
        send({"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        return
    send({"jsonrpc": "2.0", "id": message["id"], "result": result})


def main():
    if OPTIONS.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "crash" in OPTIONS:
        sys.stderr.write(OPTIONS["crash"] + "\n")
        sys.exit(3)
    if "started_file" in OPTIONS:
        with open(OPTIONS["started_file"], "a", encoding="utf-8") as stream:  # noqa: PTH123
            stream.write(f"{os.getpid()}\n")
    for line in sys.stdin:
        answer(json.loads(line))
    if OPTIONS.get("ignore_term"):
        signal.pause()


main()
