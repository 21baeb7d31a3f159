"""Searches with ddgs, in a process of its own. Imports nothing of toolcrib.

Run as `python -I ddgs_worker.py` with a job as JSON on standard input: query, limit, proxy. Prints {"results": […]} or
{"error": …} as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ENGINE_SECONDS = 10


def main() -> int:
    job = json.load(sys.stdin)
    # The library may print; nothing but the answer may reach the parent.
    sink, sys.stdout = sys.stdout, sys.stderr
    json.dump(search(job), sink)
    return 0


def search(job: dict[str, Any]) -> dict[str, Any]:
    try:
        # An extra, and only this process needs it.
        import ddgs  # noqa: PLC0415
    except ImportError:
        return {"error": "missing"}
    try:
        found = ddgs.DDGS(proxy=job["proxy"] or None, timeout=ENGINE_SECONDS).text(
            job["query"], max_results=job["limit"]
        )
    except Exception as error:  # noqa: BLE001 - a library that reads foreign pages may raise anything
        text = f"{type(error).__name__}: {error}"
        if "No results" in text:
            return {"results": []}
        return {"error": "limit" if "atelimit" in text else text[:300]}
    return {"results": found}


if __name__ == "__main__":
    sys.exit(main())
