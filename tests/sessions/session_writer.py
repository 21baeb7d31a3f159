"""Holds a scripted conversation with effects in a session, and says what it has done. Run as a program.

Arguments: the database, the session, a name, the file that effects are written to, the number of exchanges.
Each line on stdout is something that must never be lost again.
"""

from __future__ import annotations

import os
import sys

from tests.sessions.conversations import EFFECTS, answers, context, entry, gives, result, says
from toolcrib.sessions.store import SessionStore


def tell(line: str) -> None:
    # In one piece: whoever is killed between two pieces of a line has not said it.
    os.write(1, f"{line}\n".encode())


def main(database: str, session_id: str, name: str, effects: str, exchanges: int) -> None:
    store = SessionStore(database)
    recorder = store.recorder()
    with open(effects, "a", buffering=1) as world:  # noqa: PTH123
        for number in range(exchanges):
            first, second = f"{name}-{number}-a", f"{name}-{number}-b"
            store.append(session_id, says(f"{name} asks {number}"))
            tell(f"asked {number}")
            store.append(session_id, answers("", first, second))
            for call_id in (first, second):
                ctx = context(session_id, call_id)
                recorder.started(entry(), {"command": call_id}, EFFECTS, ctx)
                world.write(call_id + "\n")
                recorder.finished(entry(), result(call_id, f"result of {call_id}"), ctx)
                tell(f"finished {call_id}")
            store.append_many(session_id, [gives(first, f"result of {first}"), gives(second, f"result of {second}")])
            store.append(session_id, answers(f"{name} answers {number}"))
            tell(f"answered {number}")
    tell("done")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
