"""The process that runs the engine: an OpenAI-compatible server on loopback that ends with its parent.

It runs as a script, by path, so it loads nothing of toolcrib. It reads one line of JSON on stdin, answers with one
line on stdout (`address` or `error`), and serves until stdin closes, which also happens when the parent is killed.
It is a separate process because the engine holds the interpreter's lock while it loads and stops, and because a
crash of the engine ends the whole process.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import xllamacpp  # type: ignore[import-untyped, unused-ignore]


def parameters(options: dict[str, Any]) -> Any:
    """The engine's start parameters."""
    p = xllamacpp.CommonParams()
    p.model.path = options["model_path"]
    p.model_alias = {options["model"]}
    p.hostnames = ["127.0.0.1"]
    p.port = 0
    p.api_keys = [options["api_key"]]
    p.n_ctx = options["context_tokens"]
    p.n_parallel = 1
    p.use_jinja = True
    p.chat_template = options["template"]
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = options["threads"]
    # Let waiting threads sleep: spinning ones would take cores from the thread that makes the next token.
    p.cpuparams.poll = p.cpuparams_batch.poll = 0
    p.n_gpu_layers = 0
    p.ui = False
    p.offline = True
    p.verbosity = 0
    return p


def main() -> None:
    """Serve until the parent closes stdin."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    options = json.loads(sys.stdin.readline())
    try:
        server = xllamacpp.Server(parameters(options))
    except RuntimeError as error:
        print(json.dumps({"error": str(error)}), file=answer, flush=True)
        os._exit(1)
    print(json.dumps({"address": server.listening_address}), file=answer, flush=True)
    sys.stdin.read()
    # Skip the usual shutdown: the server would wait for everyone who still reads an answer.
    os._exit(0)


if __name__ == "__main__":
    main()
