"""What a session has seen of files is remembered, in bounds."""

from __future__ import annotations

from toolcrib.files.views import FileViews, digest_of


def test_each_session_place_and_path_has_a_view_of_its_own() -> None:
    """What one session saw in one place says nothing about another session, place or path."""
    views = FileViews()

    views.seen("s", "docker", "/f", "1", whole=True)

    assert views.last("s", "docker", "/f") is not None
    assert [views.last(*key) for key in (("t", "docker", "/f"), ("s", "ssh", "/f"), ("s", "docker", "/g"))] == [
        None
    ] * 3


def test_a_part_of_a_version_that_was_seen_whole_takes_nothing_away() -> None:
    """Who has seen all of a version has still seen all of it after reading some lines of it again."""
    views = FileViews()

    views.seen("s", "p", "/f", "1", whole=True, digest="d")
    views.seen("s", "p", "/f", "1", whole=False)
    same = views.last("s", "p", "/f")
    views.seen("s", "p", "/f", "2", whole=False)
    other = views.last("s", "p", "/f")

    assert same is not None
    assert (same.whole, same.digest) == (True, "d")
    assert other is not None
    assert (other.whole, other.digest) == (False, "")


def test_content_decides_where_it_is_known() -> None:
    """A file that was touched but has the same content is what was seen; without a digest, the stamp decides."""
    views = FileViews()
    views.seen("s", "p", "/f", "1", whole=True, digest=digest_of(b"x"))
    views.seen("s", "p", "/g", "1", whole=False)
    whole, part = views.last("s", "p", "/f"), views.last("s", "p", "/g")

    assert whole is not None
    assert part is not None
    assert whole.is_of("2", digest_of(b"x"))
    assert not whole.is_of("1", digest_of(b"y"))
    assert part.is_of("1", digest_of(b"x"))
    assert not part.is_of("2", digest_of(b"x"))
    assert not part.is_of("")


def test_what_is_forgotten_counts_as_not_seen() -> None:
    """Forgetting a file twice is harmless."""
    views = FileViews()
    views.seen("s", "p", "/f", "1", whole=True)

    views.forget("s", "p", "/f")
    views.forget("s", "p", "/f")

    assert views.last("s", "p", "/f") is None


def test_the_oldest_views_are_dropped() -> None:
    """A session that reads without end does not fill the memory."""
    views = FileViews(max_views=2)

    for name in ("/a", "/b", "/a", "/c"):
        views.seen("s", "p", name, "1", whole=True)
        views.times_shown("s", "p", name, "1", 0)

    assert views.last("s", "p", "/b") is None
    assert views.last("s", "p", "/a") is not None
    assert views.times_shown("s", "p", "/b", "1", 0) == 0


def test_repeats_are_counted_for_each_part_of_each_version() -> None:
    """The same lines of another version, or other lines of this one, are no repeat."""
    views = FileViews()

    times = [views.times_shown("s", "p", "/f", stamp, part) for stamp, part in (("1", 0), ("1", 0), ("1", 1), ("2", 0))]

    assert times == [0, 1, 0, 0]
