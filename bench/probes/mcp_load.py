"""Prints the CPU seconds of the main thread up to a loaded runtime, and the longest pause of its work after that."""

import json
import sys
import time

began = time.thread_time()

from toolcrib.runtime import Runtime  # noqa: E402

runtime = Runtime(home=sys.argv[1]).load()
loaded = time.thread_time() - began
# What a chat does next: it draws its screen and waits for keys.
began = time.perf_counter()
latest = 0.0
while time.perf_counter() - began < 0.4:
    before = time.perf_counter()
    sum(range(1000))
    latest = max(latest, time.perf_counter() - before)
print(json.dumps({"loaded": loaded, "longest_pause": latest}))
runtime.close()
