"""What a search leaves out because it must stay secret: the quick look and the whole expression agree."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from toolcrib.approval.paths import SECRET_ANYWHERE, SECRET_IN_HOME
from toolcrib.files.search_query import PARTS_OF_SECRETS, FileSearchQuery, NameFilter

IN_HOME = re.compile(rf"\A(?:{SECRET_IN_HOME.pattern})", re.IGNORECASE)
PATHS = st.one_of(st.from_regex(re.compile(SECRET_ANYWHERE.pattern, re.IGNORECASE)), st.from_regex(IN_HOME))


@given(PATHS)
def test_every_secret_path_holds_a_part_that_is_looked_for_first(path: str) -> None:
    """Otherwise the quick look would let a secret through."""
    whole = f"/{path}".lower().encode(errors="surrogateescape")

    assert any(part in whole for part in PARTS_OF_SECRETS)


def test_a_folder_that_is_secret_itself_hides_what_is_in_it() -> None:
    """What counts is the whole path, also where the search begins inside."""
    secret = r"/\.aws/(?:credentials)"
    names = NameFilter(FileSearchQuery(pattern="x", secret=secret), "/home/anna/.aws", b"./credentials\0001\n")

    assert not names.admits(b"credentials")
    assert not names.admits_all


def test_ordinary_paths_need_not_be_asked_about() -> None:
    """A tree without anything that could be a secret costs nothing."""
    names = NameFilter(FileSearchQuery(pattern="x", secret=r"/\.env$"), "/work", b"./src/main.py\0001\n")

    assert names.admits_all
    assert names.admits(b"src/main.py")
