"""The four tools with a real Home Assistant, whose devices are templates and whose web page is left out."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SERVICES_FILE
from tests.media.services import Asking, OpenMedia, called

pytestmark = [pytest.mark.services, pytest.mark.may_skip]
START_SECONDS = 120
USER, PASSWORD = "tester", "only-for-this-test"
CONFIG = """
homeassistant: {{name: Test, latitude: 0, longitude: 0, elevation: 0, unit_system: metric, time_zone: UTC}}
http: {{server_host: 127.0.0.1, server_port: {port}}}
api:
auth:
config:
input_boolean:
  power: {{name: Power}}
  bolt: {{name: Bolt}}
light:
  - platform: template
    lights:
      desk:
        friendly_name: Desk lamp
        unique_id: desk
        value_template: "{{{{ is_state('input_boolean.power', 'on') }}}}"
        turn_on: {{service: input_boolean.turn_on, target: {{entity_id: input_boolean.power}}}}
        turn_off: {{service: input_boolean.turn_off, target: {{entity_id: input_boolean.power}}}}
lock:
  - platform: template
    name: Front door
    unique_id: front
    value_template: "{{{{ is_state('input_boolean.bolt', 'on') }}}}"
    lock: {{service: input_boolean.turn_on, target: {{entity_id: input_boolean.bolt}}}}
    unlock: {{service: input_boolean.turn_off, target: {{entity_id: input_boolean.bolt}}}}
"""
# Home Assistant insists on its page; this one has its name and shows nothing.
NO_PAGE = '{"domain": "frontend", "name": "No page", "version": "1.0.0", "requirements": [], "dependencies": []}'
NO_PAGE_CODE = "async def async_setup(hass, config):\n    return True\n"


@pytest.fixture(scope="module")
def real_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a Home Assistant, and a token for it."""
    lines = SERVICES_FILE.read_text().splitlines() if SERVICES_FILE.exists() else []
    found = [line.partition("=")[2] for line in lines if line.startswith("TOOLCRIB_TEST_HOMEASSISTANT=")]
    if not found:
        pytest.skip("no Home Assistant: run scripts/test-services up")
    python, folder = shlex.split(found[0])[0], tmp_path_factory.mktemp("homeassistant")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    page = folder / "custom_components" / "frontend"
    page.mkdir(parents=True)
    (page / "manifest.json").write_text(NO_PAGE)
    (page / "__init__.py").write_text(NO_PAGE_CODE)
    (folder / "configuration.yaml").write_text(CONFIG.format(port=port))
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    hass = [python, "-m", "homeassistant"]
    account = ["--script", "auth", "--config", str(folder), "add", USER, PASSWORD]
    subprocess.run([*hass, *account], check=True, env=environ, stdout=subprocess.DEVNULL, timeout=START_SECONDS)
    address = f"http://127.0.0.1:{port}"
    with (folder / "hass.log").open("wb") as log:
        start = [*hass, "--config", str(folder), "--skip-pip"]
        server = subprocess.Popen(start, env=environ, stdout=log, stderr=log)
        try:
            wait_for(f"{address}/api/", server)
            yield address, token_of(python, address, environ)
        finally:
            server.kill()
            server.wait()


def token_of(python: str, address: str, environ: dict[str, str]) -> str:
    program = str(Path(__file__).with_name("real_home.py"))
    words = [python, program, address, USER, PASSWORD, "Study", "light.desk"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=START_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
        except urllib.error.HTTPError as error:
            if error.code == 401:
                return
        except OSError:
            pass
        # Nothing to wait on: it says nowhere that it listens.
        time.sleep(0.2)
    raise AssertionError("Home Assistant does not start")


@pytest.fixture
def token(real_home: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    address, token = real_home
    monkeypatch.setenv("HASS_URL", address)
    monkeypatch.setenv("HASS_TOKEN", token)
    return token


async def test_devices_are_found_by_domain_area_and_name(open_runtime: OpenMedia, token: str) -> None:
    """The area comes from the registry of a real home."""
    runtime = open_runtime()

    lights = await called(runtime, "ha_list_entities", domain="light")
    study = await called(runtime, "ha_list_entities", area="study")
    named = await called(runtime, "ha_list_entities", query="front")
    nowhere = await called(runtime, "ha_list_entities", area="cellar")

    assert [(one["entity_id"], one["name"]) for one in lights["entities"]] == [("light.desk", "Desk lamp")]
    assert study["entities"] == [{**lights["entities"][0], "area": "Study"}]
    assert [one["entity_id"] for one in named["entities"]] == ["lock.front_door"]
    assert "the areas are: Study" in nowhere["note"]


async def test_a_light_is_switched_and_its_state_is_read(open_runtime: OpenMedia, asking: Asking, token: str) -> None:
    """Lights need no approval; the answer says what changed."""
    runtime = open_runtime()
    await called(runtime, "ha_call_service", domain="light", service="turn_off", entity_id="light.desk")

    done = await called(runtime, "ha_call_service", domain="light", service="turn_on", entity_id="light.desk")
    state = await called(runtime, "ha_get_state", entity_id="light.desk")

    assert {"entity_id": "light.desk", "state": "on", "name": "Desk lamp"} in done["changed"]
    assert (state["state"], state["attributes"]["friendly_name"]) == ("on", "Desk lamp")
    assert asking.requests == []


async def test_a_lock_needs_approval(open_runtime: OpenMedia, asking: Asking, token: str) -> None:
    """Who says no leaves the door as it is."""
    runtime = open_runtime()
    await called(runtime, "ha_call_service", domain="lock", service="lock", entity_id="lock.front_door")
    asking.choice = "deny"

    refused = await called(runtime, "ha_call_service", domain="lock", service="unlock", entity_id="lock.front_door")
    state = await called(runtime, "ha_get_state", entity_id="lock.front_door")

    assert refused["error_type"] == "denied"
    assert state["state"] == "locked"
    assert len(asking.requests) == 2


async def test_services_are_listed_with_their_data(open_runtime: OpenMedia, token: str) -> None:
    """What a real home offers, and what it refuses."""
    runtime = open_runtime()

    every = await called(runtime, "ha_list_services")
    lights = await called(runtime, "ha_list_services", domain="light")
    wrong = await called(runtime, "ha_call_service", domain="light", service="explode")
    unknown = await called(runtime, "ha_get_state", entity_id="light.desc")

    assert "turn_on" in every["domains"]["light"]
    assert "brightness_pct" in lights["services"]["turn_on"]["fields"]
    assert "did not accept 'light.explode'" in wrong["error"]
    assert "light.desk" in unknown["error"]


async def test_a_wrong_token_is_one_sentence(
    open_runtime: OpenMedia, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the variable, not the token."""
    monkeypatch.setenv("HASS_TOKEN", "wrong-token-0123456789")

    answer = await called(open_runtime(), "ha_list_entities")

    assert "refused the key in HASS_TOKEN" in answer["error"]
    assert "wrong-token" not in answer["error"]
