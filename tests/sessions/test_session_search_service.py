"""The tool `session_search` finds earlier conversations, reads in them, and lists the latest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.sessions.conversations import answers, context, gives, says
from toolcrib.sessions.search import SessionSearchService
from toolcrib.sessions.store import SessionStore


async def ask(store: SessionStore, current: str = "", **args: Any) -> Any:
    answer = await SessionSearchService(store).handle(args, context(current, "c"))
    assert len(answer) < 9_000
    return json.loads(answer)


def ids(answer: Any) -> list[str]:
    return [result["session_id"] for result in answer["results"]]


def talk(store: SessionStore, session_id: str, *texts: str, **fields: Any) -> list[int]:
    store.create(session_id=session_id, **fields)
    return store.append_many(session_id, [says(text) for text in texts])


async def test_discover_gives_sessions_with_their_matches(store: SessionStore) -> None:
    """Each session appears once, with its title, its time and the matching messages."""
    first, _ = talk(store, "a", "we deploy with ansible", "the deploy failed", title="Deploys")
    talk(store, "b", "how do I deploy this")
    talk(store, "c", "nothing of interest")

    answer = await ask(store, query="deploy")

    by_id = {result["session_id"]: result for result in answer["results"]}
    assert set(by_id) == {"a", "b"}
    assert by_id["a"]["title"] == "Deploys"
    assert by_id["b"]["title"] == "how do I deploy this"
    assert {match["message_id"] for match in by_id["a"]["matches"]} >= {first}
    assert all("deploy" in match["text"] for match in by_id["a"]["matches"])
    assert by_id["a"]["when"]


async def test_the_current_session_and_its_family_are_left_out(store: SessionStore) -> None:
    """The model is not offered what it already knows: this session, its ancestors and its descendants."""
    talk(store, "parent", "deploy one")
    child = store.branch("parent").id
    grandchild = store.branch(child).id
    talk(store, "other", "deploy two")

    assert ids(await ask(store, child, query="deploy")) == ["other"]
    assert set(ids(await ask(store, "", query="deploy", limit=10))) == {"parent", child, grandchild, "other"}


async def test_helpers_are_hidden_and_scheduled_sessions_come_last(store: SessionStore) -> None:
    """Sessions of subagents and tools are left out; cron sessions come after those of people."""
    talk(store, "cron", "deploy deploy deploy", source="cron")
    talk(store, "cli", "we should deploy some day, when all of this is done", source="cli")
    talk(store, "sub", "deploy", source="subagent")
    talk(store, "tool", "deploy", source="tool")

    assert ids(await ask(store, query="deploy")) == ["cli", "cron"]
    assert ids(await ask(store, query="deploy", limit=1)) == ["cli"]


async def test_limit_and_sort_choose_the_sessions(store: SessionStore) -> None:
    """Three sessions by default; newest and oldest sort by the time of the messages."""
    for number in range(5):
        talk(store, f"s{number}", f"deploy {number}")

    assert len(ids(await ask(store, query="deploy"))) == 3
    assert ids(await ask(store, query="deploy", sort="newest", limit=2)) == ["s4", "s3"]
    assert ids(await ask(store, query="deploy", sort="oldest", limit=2)) == ["s0", "s1"]


async def test_a_loud_session_does_not_hide_the_others(store: SessionStore) -> None:
    """A session with hundreds of hits is one result among others, with a few snippets."""
    talk(store, "loud", *["deploy deploy"] * 700)
    talk(store, "quiet", "we talked once about a deploy, among other things")

    answer = await ask(store, query="deploy")

    assert set(ids(answer)) == {"loud", "quiet"}
    assert max(len(result["matches"]) for result in answer["results"]) <= 3


async def test_roles_can_be_chosen(store: SessionStore) -> None:
    """Only messages of the named roles count; an unknown role is an error that lists the roles."""
    store.create(session_id="a")
    store.append_many("a", [says("deploy asked"), answers("", "c1"), gives("c1", "deploy result")])

    answer = await ask(store, query="deploy", role_filter="tool, assistant")
    assert {match["role"] for match in answer["results"][0]["matches"]} == {"assistant", "tool"}
    assert "user, assistant, tool" in (await ask(store, query="deploy", role_filter="robot"))["error"]


async def test_read_around_shows_a_window(store: SessionStore) -> None:
    """A message with its neighbours, and how many more there are; the session id is optional."""
    messages = talk(store, "a", *[f"message {number}" for number in range(20)])

    answer = await ask(store, session_id="a", around_message_id=messages[10], window=2)

    assert [one["text"] for one in answer["messages"]] == [f"message {number}" for number in range(8, 13)]
    assert (answer["earlier"], answer["later"]) == (8, 7)
    assert (await ask(store, around_message_id=messages[10], window=2)) == answer


async def test_read_around_the_wrong_message_is_an_error(store: SessionStore) -> None:
    """A message of another session, or of none, is refused by name."""
    talk(store, "a", "one")
    (other,) = talk(store, "b", "two")

    assert f"message {other}" in (await ask(store, session_id="a", around_message_id=other))["error"]
    assert "message 999" in (await ask(store, around_message_id=999))["error"]


async def test_read_shows_both_ends_of_a_session(store: SessionStore) -> None:
    """A long session shows its beginning and its end, and counts what is left out."""
    talk(store, "a", *[f"message {number}" for number in range(50)])

    answer = await ask(store, session_id="a")

    texts = [one["text"] for one in answer["messages"]]
    assert (texts[0], texts[-1]) == ("message 0", "message 49")
    assert answer["total"] == 50
    assert answer["left_out"] == 50 - len(texts)


async def test_a_session_can_be_searched_alone(store: SessionStore) -> None:
    """A query with a session id searches only there, even in the current session."""
    talk(store, "a", "deploy here")
    talk(store, "b", "deploy there")

    assert ids(await ask(store, "a", query="deploy", session_id="a")) == ["a"]


async def test_browse_lists_the_latest(store: SessionStore) -> None:
    """Without arguments the latest sessions are listed, without the current one."""
    for number in range(15):
        talk(store, f"s{number:02}", f"talk {number}")

    answer = await ask(store, "s14")

    assert ids(answer)[:2] == ["s13", "s12"]
    assert len(ids(answer)) == 10
    assert answer["results"][0]["title"] == "talk 13"


@pytest.mark.parametrize("args", [{"query": "deploy", "limit": 10}, {"session_id": "s0"}, {}])
async def test_answers_are_bounded(store: SessionStore, args: dict[str, Any]) -> None:
    """Long messages are shortened so that the answer stays readable."""
    for number in range(10):
        talk(store, f"s{number}", *[f"deploy {number} " + "very long text " * 2_000] * 25, title="long title " * 100)

    answer = await ask(store, **args)

    assert "error" not in answer


async def test_a_wide_window_is_bounded_too(store: SessionStore) -> None:
    """Many long messages with calls stay within the limit of an answer."""
    store.create(session_id="a")
    messages = [answers("long text " * 500, *[f"c{number}-{call}" for call in range(8)]) for number in range(60)]
    ids = store.append_many("a", messages)

    answer = await ask(store, session_id="a", around_message_id=ids[30], window=20)

    assert len(answer["messages"]) == 41


async def test_a_profile_is_another_home(home: Path, store: SessionStore) -> None:
    """A profile's sessions are in its own folder; an unknown profile is named, and not created."""
    talk(store, "mine", "deploy mine")
    other = SessionStore(home / "profiles" / "work" / "sessions.db")
    talk(other, "theirs", "deploy theirs")
    other.close()
    (home / "profiles" / "fresh").mkdir()

    assert ids(await ask(store, query="deploy", profile="work")) == ["theirs"]
    assert "there are work" in (await ask(store, query="deploy", profile="wrok"))["error"]
    assert "does not exist" in (await ask(store, profile="../profiles/work"))["error"]
    assert "no sessions yet" in (await ask(store, profile="fresh"))["error"]
    assert not (home / "profiles" / "wrok").exists()


async def test_errors_are_told_to_the_model(store: SessionStore) -> None:
    """Unknown sessions and empty queries are errors with advice."""
    assert "toolcrib sessions list" in (await ask(store, session_id="unknown"))["error"]
    assert "no word" in (await ask(store, query="***"))["error"]
    assert (await ask(store, query="nothing"))["count"] == 0


async def test_a_query_of_a_whole_page_is_refused_in_words(store: SessionStore) -> None:
    """A model that pastes a text instead of words learns what to give, not what SQLite says."""
    assert "give a few words" in (await ask(store, query="word" * 10_000))["error"]
