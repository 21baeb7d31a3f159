"""How values are compared: in any notation, but only as whole tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.approval.value_index import TextForms, ValueForms


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("write to Anna <ANNA@Corp.example>.", "anna@corp.example"),
        ("mailto:anna@corp.example", "Anna Miller <anna@corp.example>"),
        ("send $1,200.00 now", 1200),
        ("1.200,50 € are due", "1200.5"),
        ("my iban DE89 3704 0044 0532 0130 00 is new", "DE89370400440532013000"),
        ("DE89370400440532013000", "de89 3704 0044 0532 0130 00"),
        ("call +49 151 23456789", "0151 23456789"),
        ("see https://www.Site.example/a/", "site.example/a"),
        ("see site.example", "https://site.example/search?q=1"),
        ("post it in #general.", "general"),
        ("ask @alice, not Bob", "alice"),
        ("Alice's list", "Alice"),
        ("the Grand   Hotel, Oslo", "grand hotel"),
        ("at 2031-05-26T10:00:00 sharp", "2031-05-26 10:00"),
        ("open /tmp/a/report.txt", "a/report.txt"),
        ("the full-width ＡＢＣ and a zero\u200bwidth word", "zerowidth"),
        ("file 'notes.md'", "notes.md"),
    ],
)
def test_the_notation_of_a_value_does_not_matter(text, value):
    """Case, spaces, width, invisible characters and the forms of addresses, numbers and moments are equal."""
    assert TextForms(text).has(ValueForms(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("joann@x.example", "ann@x.example"),
        ("a@b.example.evil.example", "a@b.example"),
        ("anna@corp.example", "anna"),
        ("meet at 13:00", "13"),
        ("on 2031-05-13", "13"),
        ("notevil.example", "evil.example"),
        ("evil.example.attacker.example", "evil.example"),
        ("https://trusted.example@evil.example/x", "trusted.example"),
        ("old-report.txt", "report.txt"),
        ("general-team", "general"),
        ("12000", 1200),
        ("see site.example/a", "site.example/b"),
    ],
)
def test_a_part_of_a_longer_token_is_not_the_value(text, value):
    """A value is found as whole tokens only."""
    assert not TextForms(text).has(ValueForms(value))


@given(st.text(max_size=200), st.text(max_size=40))
def test_no_text_breaks_the_comparison(text, value):
    """Whatever strangers write, the comparison answers."""
    assert TextForms(text).has(ValueForms(value)) in (True, False)


@given(st.text(alphabet=st.characters(categories=("Lu", "Ll", "Nd")), min_size=3, max_size=20))
def test_a_word_is_found_among_others(word):
    """A word that stands by itself is found, whatever its letters."""
    assert TextForms(f"please use {word} now").has(ValueForms(word))
