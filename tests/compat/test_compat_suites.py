"""Test suites written for the reference system, run against us the way its users would run them."""

from __future__ import annotations

from pathlib import Path

import pytest

DATA = Path(__file__).parent.parent / "data"
SUITES = [*sorted((DATA / "reference_suite").glob("suite_*.py")), *sorted(Path(__file__).parent.glob("suite_*.py"))]
WITHOUT_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.mark.quick_rows(3)
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.stem)
def test_reference_suite_passes(compat, suite, tmp_path):
    """A suite in the reference system's style passes under `python -m toolcrib.compat -m pytest`."""
    # Beside nothing of ours, so that neither our conftest nor our settings take part.
    for file in (suite, DATA / "compat_names.json"):
        (tmp_path / "work" / file.name).write_bytes(file.read_bytes())

    # In the usual folder for temporary files, it would first delete what earlier runs of pytest left there.
    options = ("-q", "-W", "error", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'suite'}")
    done = compat("-m", "pytest", suite.name, *options, **WITHOUT_PLUGINS)

    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_weather_tool_of_the_guide_works_as_written(compat, home):
    """The guide's tool file, unmodified in the user's tools folder, is offered and answers."""
    (home / "tools" / "weather_tool.py").write_bytes((DATA / "weather_tool.py").read_bytes())
    code = (
        "from model_tools import get_tool_definitions, handle_function_call\n"
        "print([tool['function']['name'] for tool in get_tool_definitions(['weather'])])\n"
        "print(handle_function_call('weather', {'location': 'London'}))\n"
    )

    without_key = compat("-c", code, WEATHER_API_KEY="")
    with_key = compat("-c", code, WEATHER_API_KEY="abc")

    assert without_key.stdout.splitlines() == ["[]", '{"error": "WEATHER_API_KEY not configured"}']
    assert with_key.stdout.splitlines() == ["['weather']", '{"location": "London", "temp": 22, "units": "metric"}']


def test_key_of_a_tool_may_stand_in_the_env_file(compat, home):
    """A tool that reads its key with `os.getenv` finds it in `.env` too."""
    (home / "tools" / "weather_tool.py").write_bytes((DATA / "weather_tool.py").read_bytes())
    (home / ".env").write_text("WEATHER_API_KEY=from-file\n")

    done = compat("-c", "import model_tools; print(model_tools.handle_function_call('weather', {'location': 'Rome'}))")

    assert done.stdout == '{"location": "Rome", "temp": 22, "units": "metric"}\n'


def test_tool_file_may_extend_the_catalog(python, home):
    """Appending to the core list, adding a toolset and a variable in a tool file take effect, for our own API too."""
    (home / "tools" / "moon_tool.py").write_text(
        "from hermes_cli.config import OPTIONAL_ENV_VARS\n"
        "from tools.registry import registry\n"
        "from toolsets import TOOLSETS, _HERMES_CORE_TOOLS\n"
        "_HERMES_CORE_TOOLS.append('moon')\n"
        "TOOLSETS['sky'] = {'description': 'Sky', 'tools': ['moon'], 'includes': []}\n"
        "OPTIONAL_ENV_VARS['MOON_KEY'] = {'description': 'Moon', 'prompt': 'Key', 'url': '', 'password': True}\n"
        "registry.register('moon', 'moon_tools', {'description': 'Phase'}, lambda args, **kw: '\"full\"')\n"
    )
    code = (
        "from toolcrib import get_tool_definitions\n"
        "from toolcrib.config.env_vars import OPTIONAL_ENV_VARS\n"
        "names = lambda *sets: [tool['function']['name'] for tool in get_tool_definitions(list(sets))]\n"
        "print('moon' in names('hermes-cli'), names('sky'), 'MOON_KEY' in OPTIONAL_ENV_VARS)\n"
    )

    done = python("-c", code)

    assert done.stdout == "True ['moon'] True\n", done.stderr


def test_tool_file_that_imports_model_tools_freezes_no_half_filled_map(compat, home):
    """The map of all tools is complete, even if a tool file imported `model_tools` while tools were being found."""
    register = "registry.register('{0}', '{0}', {{'description': 'd'}}, lambda args, **kw: '')\n"
    (home / "tools" / "a_tool.py").write_text(
        "import model_tools\nfrom tools.registry import registry\n" + register.format("aa")
    )
    (home / "tools" / "z_tool.py").write_text("from tools.registry import registry\n" + register.format("zz"))
    code = (
        "import toolcrib; toolcrib.get_tool_definitions()\n"
        "from model_tools import TOOL_TO_TOOLSET_MAP as tools, TOOLSET_REQUIREMENTS as sets\n"
        "print('aa' in tools, 'zz' in tools, 'zz' in sets)\n"
    )

    done = compat("-c", code)

    assert done.stdout == "True True True\n", done.stderr


def test_interrupt_sees_the_cancel_token_of_the_call(compat):
    """A handler that polls `is_interrupted()` stops when its call is cancelled."""
    code = (
        "import asyncio, threading\n"
        "from toolcrib.core.context import CancelToken\n"
        "from toolcrib import Runtime, registry\n"
        "from tools.interrupt import _interrupt_event, is_interrupted\n"
        "token, finished = CancelToken(), threading.Event()\n"
        "def handler(args, **kw):\n"
        "    before = is_interrupted()\n"
        "    token.cancel('enough')\n"
        "    print(before, is_interrupted(), _interrupt_event.wait(10))\n"
        "    finished.set()\n"
        "    return '{}'\n"
        "registry.register('polite', 'suite', {'description': 'd'}, handler)\n"
        "async def main():\n"
        "    async with Runtime() as runtime:\n"
        "        await runtime.call('polite', {}, cancel=token)\n"
        "asyncio.run(main())\n"
        # The cancelled call returns while its handler may still be at it.
        "assert finished.wait(10)\n"
        "print(is_interrupted())\n"
    )

    done = compat("-c", code)

    assert done.stdout.splitlines() == ["False True True", "False"], done.stderr
