"""The process in which the engine runs: an OpenAI-compatible server on loopback that ends with its parent.

Run as a script, by its path, so that nothing of toolcrib is loaded here. It reads one line of JSON on stdin, answers
with one line on stdout (`address`, or `error`), and serves until stdin is closed, which also happens when the parent
is killed. A process of its own, because the engine holds the interpreter's lock while it loads and while it stops,
and takes the whole process down when something in it breaks.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import xllamacpp  # type: ignore[import-untyped, unused-ignore]


def parameters(options: dict[str, Any]) -> Any:
    """What the engine is started with."""
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
    # Waiting threads sleep: those that spin take the cores from whoever makes the next token.
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
    # Without the usual steps: stopping the server waits for whoever still reads an answer.
    os._exit(0)


if __name__ == "__main__":
    main()
