"""The search finds messages by what people type, in every script, best first."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.sessions.conversations import answers, gives, says
from toolcrib.core.messages import Message, RequestedCall
from toolcrib.sessions import search
from toolcrib.sessions.search import SearchRequest, search_messages, snippet
from toolcrib.sessions.store import SessionStore


def found(store: SessionStore, typed: str, **options: object) -> list[str]:
    limit = int(str(options.pop("limit", 20)))
    return [text for _, text in search_messages(store, typed, limit=limit, wanted=SearchRequest(**options))]  # type: ignore[arg-type]


def filled(store: SessionStore, *texts: str) -> str:
    session = store.create()
    store.append_many(session.id, [says(text) for text in texts])
    return session.id


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("docker compose", ["we use docker compose here"]),
        ("DOCKER", ["we use docker compose here", "docker is slow"]),
        ("docker AND slow", ["docker is slow"]),
        ("slow OR naive", ["docker is slow", "a naïve idea"]),
        ("docker NOT slow", ["we use docker compose here"]),
        ('"compose here"', ["we use docker compose here"]),
        ('"here compose"', ["we use docker compose here"]),
        ("comp", ["we use docker compose here"]),
        ("docker slow nonsense", ["docker is slow", "we use docker compose here"]),
        ("naive", ["a naïve idea"]),
        ("NAÏVE", ["a naïve idea"]),
        ("src/app-main.py", ["look at src/app-main.py please"]),
        ("app-main", ["look at src/app-main.py please"]),
        ("ompos", ["we use docker compose here"]),
        ("nowhere", []),
        ("", []),
        ("***", []),
        ("NOT", []),
        ("OR", []),
        ("NOT docker", ["we use docker compose here", "docker is slow"]),
    ],
)
def test_what_people_type(store: SessionStore, typed: str, expected: list[str]) -> None:
    """All words must occur, the last also as a prefix; otherwise any one of them, otherwise a part of a word."""
    filled(store, "we use docker compose here", "docker is slow", "a naïve idea", "look at src/app-main.py please")

    assert sorted(found(store, typed)) == sorted(expected)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("天气", ["东京的天气怎么样", "天气"]),
        ("东京的天气", ["东京的天气怎么样"]),
        ("样", ["东京的天气怎么样"]),
        ("东京 天气", ["东京的天气怎么样"]),
        ("怎么样 东京的", ["东京的天气怎么样"]),
        ("明天东京的天气", ["东京的天气怎么样"]),
        ("ข้าวผัด", ["ฉันอยากกินข้าวผัด"]),
        ("デプロイ", ["本番にデプロイした v2"]),
        ("デプロイ v2", ["本番にデプロイした v2"]),
        ("배포", ["어제 배포했습니다"]),
        ("天气 OR 배포", ["东京的天气怎么样", "天气", "어제 배포했습니다"]),
        ("天气 NOT 东京", ["天气"]),
        ("100%天", []),
    ],
)
def test_scripts_without_spaces(store: SessionStore, typed: str, expected: list[str]) -> None:
    """Words are found inside a run of characters, even words of one or two characters."""
    filled(
        store, "东京的天气怎么样", "天气", "ฉันอยากกินข้าวผัด", "本番にデプロイした v2", "어제 배포했습니다", "plain text"
    )  # fmt: skip

    assert sorted(found(store, typed)) == sorted(expected)


def test_better_hits_come_first_and_sorting_is_by_time(store: SessionStore) -> None:
    """By default the best is first; newest and oldest sort by time."""
    filled(store, "apple among very many other words that make it less about it", "apple apple", "one apple here")

    assert found(store, "apple")[0] == "apple apple"
    assert found(store, "apple", sort="newest")[0] == "one apple here"
    assert found(store, "apple", sort="oldest")[0].startswith("apple among")
    assert len(found(store, "apple", limit=2)) == 2


def test_folded_messages_are_found_and_undone_ones_are_not(store: SessionStore) -> None:
    """Messages replaced by a summary can be searched; undone ones cannot, even where no index helps."""
    session = store.create()
    ids = store.append_many(session.id, [says("zebra folded 斑马"), answers("ok"), says("zebra undone 斑马")])
    store.fold(session.id, ids[:1], says("a summary"))
    store.undo(session.id, ids[2])

    for typed in ("zebra", "斑马", "zebra folded 斑马", "ebr"):
        assert found(store, typed) == ["zebra folded 斑马"]


def test_a_deleted_session_is_not_found(store: SessionStore) -> None:
    """Deleting removes a session from both indexes."""
    session_id = filled(store, "zebra 斑马斑马")
    store.delete(session_id)

    assert found(store, "zebra") == []
    assert found(store, "斑马斑") == []
    with store.database.write() as connection:
        for table in ("words", "trigrams"):
            connection.execute(f"INSERT INTO {table} ({table}) VALUES ('integrity-check')")


def test_calls_are_found_by_name_and_arguments(store: SessionStore) -> None:
    """A search for a command that ran finds the message that requested it."""
    session = store.create()
    call = RequestedCall(id="c1", name="terminal", arguments='{"command": "kubectl rollout"}')
    store.append_many(session.id, [Message(role="assistant", tool_calls=(call,)), gives("c1", "rolled")])

    (hit,) = search_messages(store, "kubectl")

    assert hit[0].role == "assistant"
    assert "kubectl rollout" in hit[1]


def test_the_rest_of_a_long_result_is_found_only_where_nothing_else_is(store: SessionStore) -> None:
    """The index holds the beginning of a long result; the rest is found by a scan, last."""
    session = store.create()
    store.append(session.id, gives("c1", "early " + "filler " * 2_000 + "late"))

    assert found(store, "early")[0].startswith("early")
    assert found(store, "late")[0].endswith("late")
    store.append(session.id, says("not too late"))
    assert found(store, "late") == ["not too late"]


def test_hits_are_chosen_by_role_session_and_source(store: SessionStore) -> None:
    """Hidden sessions are left out; roles and sessions can be selected or excluded."""
    visible, hidden = store.create(), store.create(source="subagent")
    store.append_many(visible.id, [says("tiger asked"), answers("tiger answered")])
    store.append(hidden.id, says("tiger hidden"))

    assert len(found(store, "tiger")) == 2
    assert len(found(store, "tiger", include_hidden=True)) == 3
    assert found(store, "tiger", roles=("user",)) == ["tiger asked"]
    assert found(store, "tiger", without={visible.id}) == []
    assert found(store, "tiger", within=hidden.id) == ["tiger hidden"]


def test_hits_far_down_the_ranking_are_reached(store: SessionStore) -> None:
    """If one session fills the first hundreds of ranks, the others are still found."""
    loud, quiet = store.create(), store.create()
    store.append_many(loud.id, [says("lion lion")] * (search.BEST_FIRST + 100))
    store.append(quiet.id, says("a lion, once, among many other words"))

    assert found(store, "lion", without={loud.id}) == ["a lion, once, among many other words"]


@pytest.mark.services
def test_an_old_session_can_be_searched_alone(store: SessionStore) -> None:
    """Words of one session are found even if newer sessions contain more of them than are ranked."""
    old = filled(store, "an old lynx", "山猫山猫", "nothing")
    store.append_many(store.create().id, [says("lynx 山猫山猫")] * (search.RANKED + 10))

    for typed in ("lynx", "ynx"):
        assert found(store, typed, within=old) == ["an old lynx"]
    for typed in ("山猫山", "山猫"):
        assert found(store, typed, within=old) == ["山猫山猫"]


@pytest.mark.services
def test_more_hits_than_can_be_ranked_are_ranked_over_the_newest(store: SessionStore) -> None:
    """Beyond the limit, newer messages displace a perfect but old one."""
    session = store.create()
    store.append(session.id, says("wolf"))
    filler = says("a wolf among other words that make the text long enough to be worse")
    store.append_many(session.id, [filler] * search.RANKED)

    assert "wolf" not in found(store, "wolf")
    assert found(store, "wolf", sort="oldest")[0] == "wolf"


QUERIES = st.one_of(
    st.text(max_size=60),
    st.lists(
        st.sampled_from(
            ["docker", '"', "'", "(", ")", "*", "^", "NEAR(", "AND", "OR", "NOT", "-", "+", ":", "text:", "{", "}",
             "天", "天气好", "\x00", "\ud800", "%", "_", "\\", ";", "--", "a" * 300, '""', "compose*", "NEAR", "ข้าว"]
        ),
        max_size=12,
    ).map(" ".join),
    st.lists(st.sampled_from(list('"()*^:-+天a \\')), max_size=20).map("".join),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(QUERIES)
@example('"unbalanced')
@example("NOT NOT a")
@example("a " * 500)
@example("天" * 500)
def test_no_query_fails(typed: str) -> None:
    """Any input gives an answer."""
    for wanted in (SearchRequest(), SearchRequest(sort="newest"), SearchRequest(sort="oldest", roles=("user",))):
        search_messages(FILLED, typed, wanted=wanted)


FILLED = SessionStore.in_memory()
filled(FILLED, "docker compose", "天气好吗", "a (b) 'c' \"d\"", "ข้าวผัด", "100% sure_thing")


def test_every_word_of_a_message_finds_it(store: SessionStore) -> None:
    """A message is found by each of its words."""
    filled(store, "The quick-brown fox_jumps over 13 lazy dogs' über-straße")

    for word in ("The", "quick", "brown", "fox_jumps", "over", "13", "lazy", "dogs", "über", "uber", "straße"):
        assert len(found(store, word)) == 1, word


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("short", ("x",), "short"),
        ("a " * 100 + "needle" + " b" * 100, ("needle",), "needle"),
        ("a " * 100 + "NÉEDLE" + " b" * 100, ("needle",), "NÉEDLE"),
        ("a " * 100 + "needle", ("missing",), "a a a"),
    ],
)
def test_a_snippet_shows_the_word(text: str, words: tuple[str, ...], expected: str) -> None:
    """The snippet contains the word, whatever its case and accents."""
    shown = snippet(text, words, 40)

    assert expected in shown
    assert len(shown) <= 42
