"""What the model is told about a search."""

from __future__ import annotations

import posixpath

from toolcrib.core.types import JsonObject
from toolcrib.files.search_query import Outcome, Query
from toolcrib.registry.results import sendable

TRUNCATED = {
    "time": "the time was up before everything was searched; search a smaller folder or use file_glob",
    "page": "stopped when this page was full, because the search took long; there may be more",
    "size": "there were too many files to look at all of them; search a smaller folder or use file_glob",
}


def answer_of(query: Query, outcome: Outcome, *, shown_path: str, is_file: bool) -> JsonObject:
    """The result of a search. Paths start as the path of the call does, so that they can be used as they are."""
    answer: JsonObject = {}
    if query.target == "files" or query.mode == "files_only":
        answer["files"] = [_shown(shown_path, one.path, is_file) for one in outcome.found]
        if query.mode == "count":
            del answer["files"]
    elif query.mode == "count":
        answer["counts"] = {_shown(shown_path, one.path, is_file): one.count for one in outcome.found}
    else:
        answer["matches"] = [
            {
                "file": _shown(shown_path, one.path, is_file),
                "line": line.number,
                "text": line.text,
                **({} if line.is_match else {"context": True}),
            }
            for one in outcome.found
            for line in one.lines
        ]
    if outcome.total is not None:
        answer["total"] = outcome.total
        if query.mode == "count" and query.target == "content":
            answer["total_matches"] = outcome.total_matches
    answer |= _more(query, outcome)
    if outcome.ending in TRUNCATED:
        answer["truncated"] = TRUNCATED[outcome.ending]
    if notes := _notes(outcome):
        answer["notes"] = notes
    return {**answer, "searched_with": outcome.engine}


def _more(query: Query, outcome: Outcome) -> JsonObject:
    """Whether there is a next page, and where it starts."""
    if query.target == "files" and query.mode == "count":
        return {}
    following = query.offset + query.limit
    if outcome.total is None:
        shown = sum(line.is_match for one in outcome.found for line in one.lines)
        is_full = (shown if query.counts_matches else len(outcome.found)) >= query.limit
    else:
        is_full = outcome.total > following
    return {"more": True, "next_offset": following} if is_full else {}


def _notes(outcome: Outcome) -> list[str]:
    notes = []
    if outcome.unreadable:
        notes.append(f"{outcome.unreadable} files or folders could not be opened (permission denied)")
    if outcome.too_large:
        notes.append(f"{outcome.too_large} files were too large to search")
    if outcome.odd_names:
        notes.append(f"{outcome.odd_names} files with line breaks in their names were not searched")
    return notes


def _shown(given: str, path: str, is_file: bool) -> str:
    if is_file:
        return sendable(given)
    above = posixpath.normpath(given)
    return sendable(path if above == "." else posixpath.join(above, path))
