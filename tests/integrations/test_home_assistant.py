"""The tools for Home Assistant, called as a model calls them, against a server by its REST API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.media.services import KEY, Asking, OpenMedia, as_json, called
from tests.web.sites import Page, Site, SiteRequest
from toolcrib.core.types import Unavailable
from toolcrib.tools.home_assistant import check_home

STATES: list[dict[str, Any]] = [
    {"entity_id": "light.kitchen", "state": "off", "attributes": {"friendly_name": "Kitchen light", "icon": "x"}},
    {"entity_id": "sensor.kitchen", "state": "21.5", "attributes": {"unit_of_measurement": "°C"}},
    {"entity_id": "lock.front", "state": "locked", "attributes": {"friendly_name": "Front door"}},
]
SERVICES = [
    {"domain": "light", "services": {"turn_on": {"description": "Turn on", "fields": {"brightness_pct": {}}}}},
    {"domain": "shell_command", "services": {"backup": {}}},
]


@pytest.fixture
def home(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A home with a light, a sensor and a lock, in two areas."""
    monkeypatch.setenv("HASS_TOKEN", KEY)
    monkeypatch.setenv("HASS_URL", site.address)
    site.pages["/api/states"] = as_json(STATES)
    site.pages["/api/services"] = as_json(SERVICES)
    areas = [["light.kitchen", "Kitchen"], ["sensor.kitchen", "Kitchen"], ["lock.front", "Hall"]]
    site.pages["/api/template"] = (200, {"content-type": "text/plain"}, json.dumps(areas).encode())

    def turn_on(asked: SiteRequest) -> Page:
        return as_json([{**STATES[0], "state": "on"}] if b"light.kitchen" in asked.body else [])

    site.pages["/api/services/light/turn_on"] = turn_on
    site.pages["/api/services/lock/unlock"] = as_json([])
    return site


async def test_entities_are_listed_by_domain_area_and_name(open_runtime: OpenMedia, home: Site) -> None:
    """The area comes from a template, because states do not have it."""
    runtime = open_runtime()

    every = await called(runtime, "ha_list_entities")
    by_domain = await called(runtime, "ha_list_entities", domain="light")
    by_area = await called(runtime, "ha_list_entities", area="kitchen")
    by_name = await called(runtime, "ha_list_entities", query="front door")
    first = await called(runtime, "ha_list_entities", limit=1)

    assert every["count"] == 3
    assert every["entities"][0] == {"entity_id": "light.kitchen", "state": "off", "name": "Kitchen light"}
    assert [one["entity_id"] for one in by_domain["entities"]] == ["light.kitchen"]
    assert [one["area"] for one in by_area["entities"]] == ["Kitchen", "Kitchen"]
    assert [one["entity_id"] for one in by_name["entities"]] == ["lock.front"]
    assert "only 1 of 3" in first["note"]
    assert "Hall, Kitchen" in (await called(runtime, "ha_list_entities", area="attic"))["note"]
    assert all(asked.headers["authorization"] == f"Bearer {KEY}" for asked in home.requests)


async def test_a_state_has_its_attributes_and_an_unknown_entity_its_nearest(
    open_runtime: OpenMedia, home: Site
) -> None:
    runtime = open_runtime()

    found = await called(runtime, "ha_get_state", entity_id="light.kitchen")

    assert found["state"] == "off"
    assert found["attributes"] == {"friendly_name": "Kitchen light"}
    assert "light.kitchen" in (await called(runtime, "ha_get_state", entity_id="light.kitchn"))["error"]
    assert "no entity" in (await called(runtime, "ha_get_state", entity_id="../../config"))["error"]


async def test_services_that_run_code_are_neither_listed_nor_called(open_runtime: OpenMedia, home: Site) -> None:
    runtime = open_runtime()

    listed = await called(runtime, "ha_list_services")
    about = await called(runtime, "ha_list_services", domain="light")

    assert listed["domains"] == {"light": ["turn_on"]}
    assert about["services"]["turn_on"]["fields"] == {"brightness_pct": ""}
    refused = await called(runtime, "ha_call_service", domain="shell_command", service="backup")
    assert "never called" in refused["error"]
    assert not [asked for asked in home.requests if "shell_command" in asked.path]


async def test_a_light_needs_no_approval_and_a_lock_does(open_runtime: OpenMedia, home: Site, asking: Asking) -> None:
    """Only what is easily undone happens unasked."""
    runtime = open_runtime()

    lit = await called(
        runtime, "ha_call_service", domain="light", service="turn_on", entity_id="light.kitchen", data={"x": 1}
    )
    assert asking.requests == []
    assert lit["changed"] == [{"entity_id": "light.kitchen", "state": "on", "name": "Kitchen light"}]
    assert json.loads(home.requests[-1].body) == {"x": 1, "entity_id": ["light.kitchen"]}

    asking.choice = "deny"
    denied = await runtime.call("ha_call_service", {"domain": "lock", "service": "unlock", "entity_id": "lock.front"})

    assert denied.is_error
    assert "lock.front" in str(asking.requests)
    assert not [asked for asked in home.requests if "unlock" in asked.path]


async def test_odd_arguments_are_refused_before_anything_is_sent(open_runtime: OpenMedia, home: Site) -> None:
    runtime = open_runtime()

    assert "small letters" in (await called(runtime, "ha_list_entities", domain="../x"))["error"]
    bad = {"domain": "light", "service": "turn_on"}
    assert "no entity" in (await called(runtime, "ha_call_service", **bad, entity_id="light/kitchen"))["error"]
    assert not home.requests


async def test_without_a_token_the_remedy_is_named(open_runtime: OpenMedia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HASS_TOKEN", raising=False)

    answer = check_home()

    assert isinstance(answer, Unavailable)
    assert "toolcrib setup ha_list_entities" in (await called(open_runtime(), "ha_get_state", entity_id="a.b"))["error"]
