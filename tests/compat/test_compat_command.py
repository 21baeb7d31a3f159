"""`python -m toolcrib.compat` runs programs as `python` does, with the reference system's names at hand."""

from __future__ import annotations

import pytest

SHOW = (
    "import sys\n"
    "from tools.registry import registry\n"
    "print(__name__, sys.argv, repr(sys.path[0]), sys.modules['__main__'].__dict__ is globals())\n"
)


@pytest.fixture
def python(fresh_python):
    """What is compared here is the interpreter itself."""
    return fresh_python


def compared(compat, python, *arguments, **options):
    """The same program under us and under plain Python."""
    return compat(*arguments, **options), python(*arguments, **options)


def test_without_arguments_it_says_how_it_is_used(compat):
    """No arguments: one line on stderr, exit 2."""
    done = compat()

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("usage: python -m toolcrib.compat")
    assert done.stderr.count("\n") == 1


def test_code(compat):
    """`-c` runs code; the rest are its arguments, and imports start in the current folder."""
    done = compat("-c", SHOW, "a", "-b")

    assert done.stdout == "__main__ ['-c', 'a', '-b'] '' True\n", done.stderr


def test_code_from_standard_input(compat):
    """`-` runs what stands on standard input."""
    done = compat("-", "a", stdin=SHOW)

    assert done.stdout == "__main__ ['-', 'a'] '' True\n", done.stderr


def test_script(compat, tmp_path):
    """A script is run with its own folder first on the path, and knows its file."""
    folder = tmp_path / "work" / "sub"
    folder.mkdir()
    (folder / "neighbour.py").write_text("")
    (folder / "script.py").write_text(SHOW + "import neighbour\nprint(__file__, __package__, __spec__)\n")

    done = compat("sub/script.py", "--flag")

    assert done.stdout.splitlines() == [
        f"__main__ ['sub/script.py', '--flag'] {str(folder)!r} True",
        f"{folder / 'script.py'} None None",
    ], done.stderr


def test_module(compat, tmp_path):
    """`-m` runs a module, with its full path as the program's name and its package known."""
    package = tmp_path / "work" / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "part.py").write_text(SHOW + "print(__package__, __spec__.name)\n")

    done = compat("-m", "pack.part", "x")

    assert done.stdout.splitlines() == [
        f"__main__ [{str(package / 'part.py')!r}, 'x'] {str(package.parent)!r} True",
        "pack pack.part",
    ], done.stderr


def test_package_and_folder_run_their_main(compat, tmp_path):
    """A package under `-m`, and a folder as a script, run their `__main__.py`."""
    package = tmp_path / "work" / "pack"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("from tools.registry import registry\nprint(__name__)\n")

    assert compat("-m", "pack").stdout == "__main__\n"
    assert compat("pack").stdout == "__main__\n"


@pytest.mark.quick_rows(2)
@pytest.mark.parametrize("arguments", [("-W", "error", "-c"), ("-Werror", "-c"), ("-uBc",), ("-X", "utf8", "-Bc")])
def test_options_of_the_interpreter(compat, arguments):
    """Options of the interpreter work in front of what is run, alone or joined to it."""
    done = compat(*arguments, SHOW + "print(sys.warnoptions, sys.flags.dont_write_bytecode)", "a")

    first, second = done.stdout.splitlines()
    assert first == "__main__ ['-c', 'a'] '' True"
    expected = (["error"], 0) if "-W" in arguments[0] else ([], 1)
    assert second == f"{expected[0]} {expected[1]}"


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize(
    "code", ["raise SystemExit(7)", "import sys; sys.exit('bye')", "1 / 0", "def f(:", "raise KeyboardInterrupt"]
)
def test_ends_as_python_does(compat, python, code):
    """Exit status and stderr, tracebacks included, are those of plain Python."""
    ours, plain = compared(compat, python, "-c", code)

    assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr)


def test_traceback_of_a_script_shows_only_the_script(compat, python, tmp_path):
    """A script that fails shows its own frames, as under plain Python."""
    (tmp_path / "work" / "fails.py").write_text("def f():\n    raise ValueError('boom')\n\nf()\n")

    ours, plain = compared(compat, python, "fails.py")

    assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr) != (0, "")


@pytest.mark.parametrize("arguments", [("no_such_file.py",), ("-m", "no_such_module"), ("-m", "no_such.inner")])
def test_what_does_not_exist(compat, python, arguments):
    """A missing script or module ends with Python's own status and says which."""
    ours, plain = compared(compat, python, *arguments)

    assert ours.returncode == plain.returncode != 0
    assert arguments[-1].split(".")[0] in ours.stderr
    assert "Traceback" not in ours.stderr


def test_functions_of_the_program_can_be_pickled_at_exit(compat, tmp_path):
    """The program's module stays `__main__` until the process ends."""
    (tmp_path / "work" / "late.py").write_text(
        "import atexit, pickle\ndef f():\n    pass\n"
        "atexit.register(lambda: print(pickle.loads(pickle.dumps(f)) is f))\n"
    )

    done = compat("late.py")

    assert done.stdout == "True\n", done.stderr
