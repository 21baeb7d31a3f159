"""Results that are too long: a preview, and the whole text in a file that is bounded too."""

import asyncio
import json
import math
import os
import stat
from pathlib import Path

import pytest

from toolcrib.core.types import ToolCall, ToolResult
from toolcrib.dispatch.truncation import FileResultStore, within_call_budget, within_turn_budget


@pytest.fixture
def store(tmp_path: Path) -> FileResultStore:
    return FileResultStore(tmp_path / "results")


class BrokenStore:
    def save(self, session_id, call_id, text):
        raise RuntimeError("no store today")


def result_of(text, **options):
    return ToolResult(content=text, **{"call_id": "c1", "name": "tool", **options})


def test_a_long_text_becomes_a_preview_with_a_handle(store):
    """The model sees the head, the tail, the size and where the whole is; the file holds all of it."""
    text = "".join(f"line {number}\n" for number in range(2000))
    cut = within_call_budget(result_of(text), 1000, store, "session")
    shown = json.loads(cut.content)
    assert len(cut.content) <= 1500
    assert (shown["truncated"], shown["total_chars"]) == (True, len(text))
    assert shown["preview"].startswith("line 0\n")
    assert shown["preview"].endswith("line 1999\n")
    assert Path(shown["handle"]).read_text() == text
    assert cut.handle == shown["handle"]


@pytest.mark.parametrize("limit", [5, 100, math.inf])
def test_what_fits_stays_as_it_is(store, limit):
    """At the limit nothing is cut, and infinity is never reached."""
    whole = result_of("x" * int(min(limit, 1_000_000)))
    assert within_call_budget(whole, limit, store, "s") is whole


def test_spilled_files_belong_to_their_owner_alone(store):
    """Results may hold secrets: nobody else on the machine reads them."""
    path = Path(store.save("s", "c", "text"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_ids_from_outside_cannot_leave_the_folder(store, tmp_path):
    """A session or call id with slashes and dots is only a name."""
    path = Path(store.save("../../etc", "../x/\0" * 50, "text"))
    assert path.parent == tmp_path / "results"


def test_two_calls_with_the_same_id_keep_their_own_texts(store):
    """Nothing is overwritten."""
    first, second = store.save("s", "c", "one"), store.save("s", "c", "two")
    assert (Path(first).read_text(), Path(second).read_text()) == ("one", "two")


@pytest.mark.parametrize("text", ["a" * 5000, "ä" * 5000, "a" + "€" * 3000, "🌍" * 2000])
@pytest.mark.parametrize("max_bytes", [200, 201, 202, 203, 1000])
def test_a_gigantic_text_is_kept_as_head_and_tail(tmp_path, text, max_bytes):
    """A file never exceeds its bound, and is cut between characters."""
    path = Path(FileResultStore(tmp_path / "r", max_file_bytes=max_bytes).save("s", "c", text))
    assert path.stat().st_size <= max_bytes
    kept = path.read_text(encoding="utf-8")
    assert kept[:3] == text[:3]
    assert kept[-3:] == text[-3:]
    assert "omitted" in kept


def test_the_folder_is_bounded_and_loses_its_oldest_files(tmp_path):
    """Room is made by removing what is oldest."""
    store = FileResultStore(tmp_path / "r", max_folder_bytes=300)
    paths = []
    for number in range(5):
        paths.append(Path(store.save("s", str(number), "x" * 100)))
        os.utime(paths[-1], (number, number))
    assert [path.exists() for path in paths] == [False, False, True, True, True]


def test_text_that_is_no_unicode_is_kept(store):
    """Lone surrogates, as they come from undecodable file names, do not cost the result."""
    cut = within_call_budget(result_of("\udc80" * 5000), 1000, store, "s")
    assert Path(cut.handle).read_bytes().decode("utf-8", "surrogatepass") == "\udc80" * 5000


@pytest.mark.parametrize("obstacle", ["file in place of the folder", "a store that raises"])
def test_a_text_that_cannot_be_kept_still_gives_a_preview(tmp_path, obstacle):
    """A full or broken disk costs the whole text, not the result."""
    (tmp_path / "taken").write_text("")
    store = BrokenStore() if obstacle == "a store that raises" else FileResultStore(tmp_path / "taken")
    cut = within_call_budget(result_of("x" * 5000), 1000, store, "s")
    shown = json.loads(cut.content)
    assert shown["preview"].startswith("xxx")
    assert (shown["handle"], cut.handle) == ("", "")
    assert "could not be stored" in shown["advice"]


def test_an_error_stays_an_error(store):
    """A long error result keeps its error key."""
    long_error = result_of(
        json.dumps({"error": "bad " + "x" * 5000}), status="error", error_type="tool_error", error_message="bad xxx"
    )
    assert json.loads(within_call_budget(long_error, 1000, store, "s").content)["error"] == "bad xxx"


def test_the_biggest_results_of_a_turn_are_cut_first(store):
    """Only as many as needed become previews, the longest first; order and ids stay."""
    results = [result_of("a" * size, call_id=str(size)) for size in (1000, 50_000, 20_000, 5000)]
    kept = within_turn_budget(results, 30_000, store, "s")
    assert [result.call_id for result in kept] == ["1000", "50000", "20000", "5000"]
    assert [bool(result.handle) for result in kept] == [False, True, False, False]
    assert sum(len(result.content) for result in kept) <= 30_000


def test_many_middling_results_fit_into_the_turn_together(store):
    """Also results that are small one by one are cut where there are too many of them."""
    kept = within_turn_budget([result_of("a" * 2900) for _ in range(100)], 200_000, store, "s")
    assert sum(len(result.content) for result in kept) <= 200_000


def test_previews_uncuttable_and_multimodal_results_are_left_alone(store):
    """What was cut already, what must never be cut, and pictures stay."""
    results = [
        result_of("a" * 9000, handle="/somewhere"),
        result_of("b" * 9000, name="read_file"),
        result_of({"_multimodal": True, "content": [{"type": "text", "text": "c" * 9000}]}),
    ]
    assert within_turn_budget(results, 100, store, "s", never_cut={"read_file"}) == results


async def test_the_runtime_cuts_by_call_and_by_turn(make_runtime, add_tool):
    """The limits of the config hold; a tool's own limit goes before; infinity is never cut."""
    runtime = make_runtime("tool_output:\n  max_result_chars: 5000\n  max_turn_chars: 12000\n")
    for name, limit in (("usual", None), ("strict", 300), ("boundless", math.inf)):
        add_tool(runtime, name, lambda args, **kwargs: "x" * args["n"], max_result_size_chars=limit, effects=())
    assert (await runtime.call("usual", {"n": 5000})).handle == ""
    assert (await runtime.call("usual", {"n": 5001})).handle.startswith(str(runtime.settings.home.results_dir))
    assert (await runtime.call("strict", {"n": 301})).handle
    assert (await runtime.call("boundless", {"n": 1_000_000})).handle == ""

    calls = [ToolCall(id=str(index), name="usual", arguments={"n": 4900}) for index in range(3)]
    calls.append(ToolCall(id="free", name="boundless", arguments={"n": 6000}))
    results = await runtime.call_many(calls)
    assert [bool(result.handle) for result in results[:3]].count(True) >= 2
    assert results[3].content == "x" * 6000


async def test_a_handler_can_spill_for_itself(runtime, add_tool):
    """ctx.spill keeps a text and gives its handle."""
    add_tool(runtime, "spills", lambda args, ctx, **kwargs: ctx.spill("whole text"))
    handle = (await runtime.call("spills", {})).content
    assert await asyncio.to_thread(Path(handle).read_text) == "whole text"
