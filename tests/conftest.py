"""What all tests share: a home of their own, so that nobody's real settings are read or changed."""

from __future__ import annotations

import gc
import itertools
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import certifi
import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from toolcrib.runtime import Runtime
from toolcrib.testing import isolated_runtime

# How long a machine takes to draw examples says nothing about the code: other work may hold it up.
# Where a change is judged, it is by the same examples each time; on everybody's machine others are tried.
IS_STEADY = os.environ.get("TOOLCRIB_STEADY_EXAMPLES") == "1"
settings.register_profile("full", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=IS_STEADY)
# No test draws more examples than this, whatever it asks for; `make test-all` chooses the other profile.
settings.register_profile("quick", settings.get_profile("full"), max_examples=5)
settings.load_profile("quick")

FOLDER_NUMBERS = itertools.count()
LAST_LINE_OF_CERTIFICATE = "-----END CERTIFICATE-----\n"
SERVICES_FILE = Path(__file__).parent.parent / ".services" / "env"
ONLY_WITH_SERVICES = re.compile(r"^pytestmark = \[?pytest\.mark\.services\b", re.MULTILINE)
SERVICES_ARE_REQUIRED = os.environ.get("TOOLCRIB_REQUIRE_SERVICES") == "1"


def pytest_configure() -> None:
    """Hear the usual signals, also where whoever started the tests ignores them: what they start would, too."""
    for number, handler in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # Whoever ends the tests wants what they started to end, too, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Nearly all that is made until the tests run stays.
    gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which no test is wanted: some import SDKs that take longer than hundreds of tests."""
    if config.option.markexpr != "not services" or collection_path.suffix != ".py":
        return None
    return bool(ONLY_WITH_SERVICES.search(collection_path.read_text(encoding="utf-8"))) or None


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every later collection of garbage: there is much of it."""
    gc.collect()
    gc.freeze()
    # Rarely, because a test leaves little: looking for it took a hundredth of the time of all tests.
    gc.set_threshold(10_000)
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave most rows of long tables to `make test-all`, and cap the examples that a test draws."""
    rows, call = item.get_closest_marker("quick_rows"), getattr(item, "callspec", None)
    # The parameters of a table share the number of their row; a fixture has few values beside it.
    is_later = rows and call and max(call.indices.values()) % rows.args[0]
    if is_later and not item.get_closest_marker("services"):
        item.add_marker("services")
        # It needs time and no service: a row whose program is not installed may still be skipped.
        item.add_marker("may_skip")
    if settings.get_current_profile_name() != "quick":
        return
    function, machine = getattr(item, "function", None), getattr(item, "cls", None)
    # Hypothesis has no other way to change the settings of a test that states its own.
    if stated := getattr(function, "_hypothesis_internal_use_settings", None):
        function._hypothesis_internal_use_settings = _capped(stated)
    if isinstance(stated := getattr(machine, "settings", None), settings):
        machine.settings = _capped(stated)


def _capped(stated: settings) -> settings:
    return settings(stated, max_examples=min(stated.max_examples, settings.default.max_examples))


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for all folders of this run; it has the one certificate that loopback tests need."""
    folder = tmp_path_factory.getbasetemp()
    certificate, end, _ = certifi.contents().partition(LAST_LINE_OF_CERTIFICATE)
    (folder / "certificate.pem").write_text(certificate + end)
    _make_bare_python(folder / "python")
    return folder


def _make_bare_python(folder: Path) -> None:
    """A `python3` without packages: what a machine has installed may run at every start and take longer than a test."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    (folder / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, base_folder: Path) -> Path:
    """An empty folder for the test; unlike pytest's own fixture, it does not maintain a link to the latest one."""
    name = re.sub(r"\W", "_", request.node.name)[:26]
    folder = base_folder / f"{name}{next(FOLDER_NUMBERS)}"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The toolcrib home of the test and its subprocesses; nothing has created it yet."""
    return tmp_path / "home"


@pytest.fixture(autouse=True, scope="session")
def plain_environ(base_folder: Path) -> Iterator[None]:
    """Clear the variables that would change what toolcrib does."""
    names = {
        "HERMES_HOME",
        "TOOLCRIB_SAFE_MODE",
        "HERMES_SAFE_MODE",
        "TOOLCRIB_YOLO",
        "HERMES_YOLO_MODE",
        "PYTHONDONTWRITEBYTECODE",
        "NO_COLOR",
        "DISPLAY",
        *(name for name in os.environ if name.startswith("TERMINAL_")),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.delenv(name, raising=False)
        # The first python3 on the way may be a script of pyenv, which is slow and which a sandbox may not run.
        patch.setenv("PATH", f"{base_folder}/python/bin:{sys.base_prefix}/bin:{os.environ['PATH']}")
        yield


@pytest.fixture(autouse=True)
def isolated_environ(
    request: pytest.FixtureRequest, base_folder: Path, plain_environ: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point every test at homes of its own."""
    # Most tests write nothing, so their folder has a name only.
    has_folder = "tmp_path" in request.fixturenames
    folder = request.getfixturevalue("tmp_path") if has_folder else base_folder / f"unused{next(FOLDER_NUMBERS)}"
    monkeypatch.setenv("TOOLCRIB_HOME", str(folder / "home"))
    monkeypatch.setenv("HOME", str(folder / "user"))
    # Every HTTP client loads the trusted certificates: 20 ms for all public ones, which nobody needs on loopback.
    if request.node.get_closest_marker("services") is None:
        monkeypatch.setenv("SSL_CERT_FILE", str(base_folder / "certificate.pem"))


@pytest.fixture
def model_dir() -> str:
    """The folder with the weights of the small models; skips where `scripts/test-services up` did not put them."""
    lines = SERVICES_FILE.read_text().splitlines() if SERVICES_FILE.exists() else []
    found = [line.partition("=")[2] for line in lines if line.startswith("TOOLCRIB_TEST_MODEL_DIR=")]
    if not found:
        pytest.skip("no model: run scripts/test-services up")
    return shlex.split(found[0])[0]


SCHEMA = {
    "description": "A tool for tests",
    "parameters": {"type": "object", "properties": {"n": {"type": "integer"}, "text": {"type": "string"}}},
}


@pytest.fixture
def make_runtime(tmp_path: Path) -> Iterator[Callable[..., Runtime]]:
    """Runtimes over empty registries, each with a home of its own; `config` is the text of config.yaml."""
    with ExitStack() as opened:
        homes = iter(range(1_000))

        def make(config: str = "", **options: Any) -> Runtime:
            return opened.enter_context(isolated_runtime(tmp_path / f"home-{next(homes)}", config, **options))

        yield make


@pytest.fixture
def runtime(make_runtime: Callable[..., Runtime]) -> Runtime:
    return make_runtime()


@pytest.fixture
def add_tool() -> Callable[..., None]:
    """Registers a handler in a runtime's registry, with a small schema unless told otherwise."""

    def add(runtime: Runtime, name: str, handler: Callable[..., Any], **options: Any) -> None:
        options.setdefault("schema", SCHEMA)
        runtime.registry.register(name=name, toolset=options.pop("toolset", "test"), handler=handler, **options)

    return add


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Report only what somebody wants to know: a set-up or tear-down that passed costs as much to tell as the test."""
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where services are required, a skipped test that needs one has failed."""
    report = yield
    is_required = item.get_closest_marker("services") and not item.get_closest_marker("may_skip")
    if SERVICES_ARE_REQUIRED and report.skipped and is_required:
        report.outcome = "failed"
        report.longrepr = f"a required service is missing: {report.longrepr}"
    return report
