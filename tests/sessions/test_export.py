"""Exports for other programs and for people."""

from __future__ import annotations

import json

import pytest

from toolcrib.core.messages import Image, Message, RequestedCall, Text, user_message
from toolcrib.core.models import Usage
from toolcrib.sessions.export import (
    ALL_STATES,
    Transcript,
    as_markdown,
    as_openai,
    as_sharegpt,
    is_unknown,
    masked,
    read_transcript,
)
from toolcrib.sessions.store import SessionStore

KEY = "sk-" + "a1B2" * 8


def call(id: str, name: str = "terminal", arguments: str = '{"command": "ls"}') -> RequestedCall:
    return RequestedCall(id=id, name=name, arguments=arguments)


def result(id: str, text: str, name: str = "terminal", **more: object) -> Message:
    return Message(role="tool", call_id=id, name=name, content=text, **more)  # type: ignore[arg-type]


CONVERSATION = [
    user_message("What is here?"),
    Message(
        role="assistant", content="I look.", reasoning="ls will do", tool_calls=(call("c1"), call("c2", "todo", "{}"))
    ),
    result("c1", "a.txt\n```\nb"),
    result("c2", '{"todos": []}', "todo"),
    Message(role="assistant", content="One file."),
]


@pytest.fixture
def store() -> SessionStore:
    return SessionStore.in_memory()


def saved(store: SessionStore, *messages: Message, **fields: str) -> Transcript:
    session = store.create(model="m", provider="p", **fields)  # type: ignore[arg-type]
    store.append_many(session.id, messages or CONVERSATION)
    return read_transcript(store, session.id)


def test_a_session_is_one_object_of_openai_messages(store: SessionStore) -> None:
    """The messages are in the chat API's format, with the system prompt first and the reasoning beside the text."""
    exported = as_openai(saved(store, system_prompt="Be brief.", title="Files"))

    assert (exported["title"], exported["model"]) == ("Files", "m")
    assert exported["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is here?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "ls will do",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"command": "ls"}'}},
                {"id": "c2", "type": "function", "function": {"name": "todo", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "content": "a.txt\n```\nb", "tool_call_id": "c1", "name": "terminal"},
        {"role": "tool", "content": '{"todos": []}', "tool_call_id": "c2", "name": "todo"},
        {"role": "assistant", "content": "One file."},
    ]


def test_images_are_parts_of_the_content(store: SessionStore) -> None:
    """An image is exported by its address, or as a data URL if it has none."""
    message = user_message("see", [Image(media_type="image/png", data="QUJD"), Image(url="http://x/y.png")])

    [exported] = as_openai(saved(store, message))["messages"]

    assert exported["content"] == [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
    ]


def test_a_trajectory_has_turns_with_tagged_blocks(store: SessionStore) -> None:
    """Consecutive results are one turn of the tool; calls and results are JSON inside their tags."""
    exported = as_sharegpt(saved(store, system_prompt="Be brief."))

    turns = exported["conversations"]
    assert [turn["from"] for turn in turns] == ["system", "human", "gpt", "tool", "gpt"]
    assert turns[2]["value"] == (
        "<think>\nls will do\n</think>\nI look.\n"
        '<tool_call>\n{"name": "terminal", "arguments": {"command": "ls"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "todo", "arguments": {}}\n</tool_call>'
    )
    first, second = turns[3]["value"].split("</tool_response>\n")
    assert json.loads(first.removeprefix("<tool_response>\n")) == {
        "tool_call_id": "c1", "name": "terminal", "content": "a.txt\n```\nb",
    }  # fmt: skip
    assert '"content": {"todos": []}' in second
    assert exported["completed"] is True


def test_a_trajectory_that_ends_in_a_call_is_not_completed(store: SessionStore) -> None:
    """Users who train on the export can leave out interrupted calls."""
    assert as_sharegpt(saved(store, *CONVERSATION[:4]))["completed"] is False
    assert as_sharegpt(saved(store, *CONVERSATION[:2]))["completed"] is False


def test_markdown_folds_calls_with_their_results(store: SessionStore) -> None:
    """Text is visible; each call with its arguments and result is in one collapsible block that nothing can break."""
    text = as_markdown(saved(store, title="Files & <more>"))

    assert text.startswith("# Files & \\<more\\>\n")
    assert text.index("## You") < text.index("What is here?") < text.index("## Agent")
    assert text.count("<details>") == text.count("</details>") == 3
    assert "<summary>terminal {&quot;command&quot;: &quot;ls&quot;}: ok</summary>" in text
    assert "````\na.txt\n```\nb\n````" in text
    assert text.count("## Agent") == 1
    assert text.endswith("One file.\n")


def test_secrets_are_masked_everywhere(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts, reasoning, arguments, addresses and the prompt contain no keys; images and other words stay."""
    monkeypatch.setenv("TIDES_API_KEY", 'my "very" secret')
    arguments = json.dumps({"header": f"Bearer {KEY}", 'n\\"': 'my "very" secret'})
    transcript = masked(
        saved(
            store,
            Message(role="user", content=(Text(f"use {KEY}"), Image(url=f"http://x/?token={KEY}"), Image(data="QUJD"))),
            Message(
                role="assistant", reasoning=KEY, tool_calls=(call("c1", arguments=arguments),), provider_data={"k": KEY}
            ),
            result("c1", f"found {KEY} here"),
            system_prompt=f"the key {KEY}",
            title=KEY,
        )
    )

    for text in (json.dumps(as_openai(transcript)), json.dumps(as_sharegpt(transcript)), as_markdown(transcript)):
        assert KEY not in text
        assert "very" not in text
        assert "[secret]" in text
    assert "QUJD" in json.dumps(as_openai(transcript))
    assert json.loads(transcript.messages[1].message.tool_calls[0].arguments)["header"].startswith("Bearer ")


def test_arguments_without_secrets_keep_their_bytes(store: SessionStore) -> None:
    """Masking rewrites only what it must, and nothing that is not JSON."""
    odd = '{"a":1 ,  "b": "ü"}'
    transcript = masked(
        saved(store, Message(role="assistant", tool_calls=(call("c1", arguments=odd), call("c2", arguments="{broken"))))
    )

    assert [one.arguments for one in transcript.messages[0].message.tool_calls] == [odd, "{broken"]


def test_a_call_without_an_end_is_shown_as_unknown(store: SessionStore) -> None:
    """A call that a crash left open is not shown as done, and a call without a result says so."""
    unknown = json.dumps({"error": "Outcome unknown: …", "status": "unknown"})
    transcript = saved(
        store,
        Message(role="assistant", tool_calls=(call("c1"), call("c2"), call("c3"))),
        result("c1", unknown, status="error"),
        result("c3", '{"status": "unknown"}'),
    )

    text = as_markdown(transcript)

    assert is_unknown(transcript, "c1")
    assert not is_unknown(transcript, "c3")
    assert text.count("outcome unknown</summary>") == 1
    assert "no result</summary>" in text


def test_folded_and_undone_messages_come_only_when_asked_for(store: SessionStore) -> None:
    """By default, the export is the conversation as the model sees it."""
    session = store.create()
    ids = [store.append(session.id, user_message(f"message {number}")) for number in range(3)]
    store.fold(session.id, ids[:1], Message(role="user", content="summary"))
    store.undo(session.id, ids[2])

    live = as_openai(read_transcript(store, session.id))["messages"]
    everything = as_openai(read_transcript(store, session.id, states=ALL_STATES))["messages"]

    assert [one["content"] for one in live] == ["summary", "message 1"]
    assert {one["content"]: one.get("state", "live") for one in everything} == {
        "summary": "live", "message 0": "folded", "message 1": "live", "message 2": "undone",
    }  # fmt: skip
    assert "(undone)" in as_markdown(read_transcript(store, session.id, states=ALL_STATES))


def test_what_it_cost_is_told(store: SessionStore) -> None:
    """The export includes the session's tokens and cost."""
    session = store.create(model="m")
    store.append(
        session.id,
        Message(role="assistant", content="x"),
        usage=Usage(input_tokens=1000, output_tokens=5, cost_usd=0.25),
    )
    transcript = read_transcript(store, session.id)

    assert as_openai(transcript)["usage"]["input_tokens"] == 1000
    assert "1,000 tokens in, 5 out, 0.2500 US dollars" in as_markdown(transcript)
