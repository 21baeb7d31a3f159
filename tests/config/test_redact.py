"""Masking: known secrets and what is shaped like one disappear; ordinary text stays."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.config.env_vars import OPTIONAL_ENV_VARS
from toolcrib.config.environment import unset_variables
from toolcrib.config.redact import MASK, known_secrets, redact

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-abcdefghijklmnop1234", "sk-proj-abc_DEF-ghijklmnop", "sk-ant-api03-abcdefghijklmnop",
        "ghp_abcdefghijklmnopqrst1234", "github_pat_abcdefghij_klmnopqrst", "glpat-abcdefghij-klmnop12",
        "xoxb-1234567890-abcdef", "AKIAABCDEFGHIJKLMNOP", "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "hf_abcdefghijklmnopqrstuv", "npm_abcdefghijklmnopqrstuvwxyz012345", JWT,
    ],
)  # fmt: skip
@pytest.mark.parametrize("around", ["{}", "key={} failed", "({})", '"{}",', "token:{}\n", "a/{}/b", "x {}\ty"])
def test_what_is_shaped_like_a_key_is_masked(secret: str, around: str) -> None:
    """Wherever it stands in a text."""
    assert redact(around.format(secret)) == around.format(MASK)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer abcdef1234567890", "Authorization: Bearer [secret]"),
        ("authorization: basic dXNlcjpwYXNzd29yZA==", "authorization: basic [secret]"),
        ("https://me:hunter2@example.org/x", "https://me:[secret]@example.org/x"),
        ("postgres://:hunter2@db/x", "postgres://:[secret]@db/x"),
        ("GET /x?api_key=hunter2&units=metric", "GET /x?api_key=[secret]&units=metric"),
        ("https://a.b/?q=1&access_token=hunter2", "https://a.b/?q=1&access_token=[secret]"),
        ("https://a.b/?appid=0123abcd", "https://a.b/?appid=[secret]"),
    ],
)
def test_credentials_in_headers_and_addresses_are_masked(text: str, masked: str) -> None:
    """The rest of the text stays, so that it still helps."""
    assert redact(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "basic authentication failed", "the bearer unfortunately left", "http://example.org:8080/path@2x.png",
        "task-force", "risk-assessment-of-the-project", "sk-short", "https://a.b/?q=weather&monkey=1", "a@b.c", "",
        "eyJ.eyJ.eyJ", "C:\\Users\\x", "see https://example.org/docs?page=2#key=value",
    ],
)  # fmt: skip
def test_ordinary_text_stays(text: str) -> None:
    """Masking must not damage what people need to read."""
    assert redact(text) == text


def test_the_values_of_secret_variables_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are declared as passwords, and those whose name says so; the longest first."""
    monkeypatch.setenv("OPENAI_API_KEY", "correct horse")
    monkeypatch.setenv("SOME_WEATHER_API_KEY", "correct horse battery")
    monkeypatch.setenv("SOME_TOKEN", "staple-staple")
    monkeypatch.setenv("SOME_CITY", "Frankfurt am Main")
    monkeypatch.setenv("SHORT_TOKEN", "abc")

    text = redact("correct horse battery, correct horse, staple-staple, Frankfurt am Main, abc")

    assert text == f"{MASK}, {MASK}, {MASK}, Frankfurt am Main, abc"


def test_a_variable_that_is_declared_later_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tool files add to the table; a malformed entry of theirs disturbs nobody."""
    monkeypatch.setenv("PLAIN_NAME", "correct horse")
    monkeypatch.setitem(OPTIONAL_ENV_VARS, "MALFORMED", "no dict")  # type: ignore[arg-type]
    assert redact("correct horse") == "correct horse"

    monkeypatch.setitem(OPTIONAL_ENV_VARS, "PLAIN_NAME", {"password": True})
    assert redact("correct horse") == MASK


def test_the_table_may_grow_while_others_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool file that is loaded does not break the log line of another thread."""
    names = [f"GROWING_{number}" for number in range(2000)]
    stop = threading.Event()
    errors: list[BaseException] = []

    def mask() -> None:
        try:
            while not stop.is_set():
                known_secrets()
        except BaseException as error:  # noqa: BLE001 - looked at below, in the test's own thread
            errors.append(error)

    thread = threading.Thread(target=mask)
    thread.start()
    for name in names:
        monkeypatch.setitem(OPTIONAL_ENV_VARS, name, {"password": True})
    stop.set()
    thread.join()

    assert errors == []


@given(st.text(st.characters()))
def test_any_text_can_be_masked_and_masking_again_changes_nothing(text: str) -> None:
    """Never an exception, surrogates included."""
    once = redact(text)

    assert redact(once) == once


def test_unset_and_empty_variables_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they were asked for."""
    monkeypatch.setenv("FULL_ONE", "x")
    monkeypatch.setenv("EMPTY_ONE", "")
    monkeypatch.delenv("ABSENT_ONE", raising=False)

    assert unset_variables(["EMPTY_ONE", "FULL_ONE", "ABSENT_ONE"]) == ["EMPTY_ONE", "ABSENT_ONE"]
