import logging
import stat
import subprocess
import sys

import pytest

from toolcrib.config.logs import configure_logging

LOGGER = logging.getLogger("toolcrib.some.part")


@pytest.fixture
def configure(home):
    """Set logging up for one test, and take it down after it."""
    undo = []

    def start(level="info", secrets=()):
        undo.append(configure_logging(home, level, lambda: secrets))
        return home

    yield start
    for detach in undo:
        detach()


def test_nothing_is_created_before_the_first_record(configure):
    """A run that logs nothing leaves no trace on the disk."""
    home = configure("warning")

    LOGGER.info("too unimportant")

    assert not home.root.exists()


def test_records_land_in_a_file_for_the_owner_alone(configure):
    """The first record creates the folder and the file, readable by their owner."""
    home = configure()

    LOGGER.warning("tool %r failed", "weather")

    assert "WARNING toolcrib.some.part: tool 'weather' failed" in home.log_file.read_text()
    assert stat.S_IMODE(home.log_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.log_file.parent.stat().st_mode) == 0o700


def test_secrets_are_masked_everywhere(configure):
    """Known values and things shaped like keys are masked in messages, arguments and tracebacks."""
    home = configure(secrets=["hunter22", "hunter22-long"])
    key = "sk-" + "a1" * 20

    LOGGER.info("login with %s", "hunter22-long")
    try:
        raise ValueError(f"refused {key} for hunter22")
    except ValueError:
        LOGGER.exception("call failed")

    text = home.log_file.read_text()
    assert "hunter22" not in text
    assert "-long" not in text
    assert key not in text
    assert "ValueError: refused" in text


def test_setting_up_twice_writes_each_record_once(configure):
    """A second set-up takes the place of the first, with its level."""
    configure("error")
    home = configure("debug")

    LOGGER.debug("once")

    assert home.log_file.read_text().count("once") == 1


def test_detaching_leaves_the_logger_as_it_was(home):
    """What set-up returns removes the handler and gives the old level back."""
    logger = logging.getLogger("toolcrib")
    before = (list(logger.handlers), logger.level)

    first = configure_logging(home, "debug", list)
    second = configure_logging(home, "error", list)
    first()
    assert len(logger.handlers) == len(before[0]) + 1
    second()

    assert (list(logger.handlers), logger.level) == before


@pytest.mark.services
def test_the_file_rotates(configure):
    """The log never takes more than four files of a megabyte."""
    home = configure()

    for _ in range(60):
        LOGGER.info("x" * 100_000)

    files = sorted(path.name for path in home.log_file.parent.iterdir())
    assert files == ["toolcrib.log", "toolcrib.log.1", "toolcrib.log.2", "toolcrib.log.3"]
    assert all(path.stat().st_size <= 1_000_000 for path in home.log_file.parent.iterdir())
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in home.log_file.parent.iterdir())


def test_a_log_that_cannot_be_written_disturbs_nobody(configure, capfd):
    """A home that cannot be made is swallowed without a word, and writing starts once it can."""
    home = configure()
    home.root.write_text("in the way")
    LOGGER.error("lost")
    home.root.unlink()
    LOGGER.error("kept")

    assert home.log_file.read_text().endswith("kept\n")
    assert capfd.readouterr() == ("", "")


def test_an_odd_record_disturbs_nobody(home):
    """A record whose arguments do not fit is dropped, one that cannot be encoded is escaped; nothing is printed."""
    script = (
        "import logging, sys; from pathlib import Path; from toolcrib.config.logs import configure_logging\n"
        "from toolcrib.config.paths import Home; configure_logging(Home(Path(sys.argv[1])), 'info', list)\n"
        "logger = logging.getLogger('toolcrib.x'); logger.error('%d', 'text'); logger.error('odd ' + chr(0xD800))"
    )

    done = subprocess.run([sys.executable, "-c", script, str(home.root)], capture_output=True, text=True, check=True)

    assert home.log_file.read_text().endswith("odd \\ud800\n")
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_full_disk_disturbs_nobody(configure, capfd):
    """Records that do not fit are dropped, quietly."""
    home = configure()
    home.log_file.parent.mkdir(parents=True)
    home.log_file.symlink_to("/dev/full")

    LOGGER.error("lost")

    assert capfd.readouterr() == ("", "")


def test_importing_configures_nothing():
    """A program that uses the library keeps its own logging."""
    script = (
        "import logging, toolcrib.config.logs, toolcrib.config.load;"
        "print(logging.root.handlers, logging.getLogger('toolcrib').handlers)"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "[] []\n"
