"""The service behind the `ha_…` tools: devices of a home, over the REST API of Home Assistant.

https://developers.home-assistant.io/docs/api/rest/
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from toolcrib.core.context import ToolContext
from toolcrib.core.errors import ToolcribError, UnknownName, nearest_names
from toolcrib.core.types import Effect, JsonObject
from toolcrib.web.hosted_service import ApiService, ServiceSpec
from toolcrib.web.http_client import GuardedClient
from toolcrib.web.provider_access import ProviderFailed, bounded

SPEC = ServiceSpec("Home Assistant", "http://homeassistant.local:8123", ("HASS_TOKEN",), "HASS_URL")
SECONDS = 20.0
ALL_SECONDS = SECONDS * 3
LATE = "Home Assistant did not answer within {:g} seconds"
DEFAULT_ENTITIES = 100
MAX_TEXT_CHARS = 500
BLOCKED_DOMAINS = frozenset({"shell_command", "command_line", "python_script", "pyscript", "hassio", "rest_command"})
"""Their services run code or commands on the machine of Home Assistant."""
HARMLESS_DOMAINS = frozenset(
    "light fan media_player climate humidifier input_boolean input_number input_select input_text input_datetime "  # noqa: SIM905
    "timer counter todo shopping_list".split()
)
"""What their services do is easily undone; locks, covers, alarms, switches, scenes and scripts may open a door."""
HIDDEN_ATTRIBUTES = frozenset({"entity_picture", "icon", "supported_features", "access_token"})
AREAS = (
    "[{% for one in states %}{{ [one.entity_id, area_name(one.entity_id) or ''] | tojson }}"
    "{% if not loop.last %},{% endif %}{% endfor %}]"
)
_NAME = re.compile(r"[a-z0-9_]{1,100}")
_ENTITY = re.compile(r"[a-z0-9_]{1,100}\.[a-z0-9_]{1,200}")


class HomeFailed(ToolcribError):
    """A call that cannot be made; the message says why and what to do."""


class UnknownEntity(UnknownName):
    kind = "entity"


class HomeAssistantService:
    """The devices of the user's home."""

    def __init__(self, client: Callable[[], GuardedClient]) -> None:
        self._client = client

    # The tools

    async def list_entities(self, args: JsonObject, ctx: ToolContext) -> str:
        return await bounded(self._list_entities(args), ctx, ALL_SECONDS, LATE)

    async def get_state(self, args: JsonObject, ctx: ToolContext) -> str:
        return await bounded(self._get_state(args), ctx, ALL_SECONDS, LATE)

    async def list_services(self, args: JsonObject, ctx: ToolContext) -> str:
        return await bounded(self._list_services(args), ctx, ALL_SECONDS, LATE)

    async def call_service(self, args: JsonObject, ctx: ToolContext) -> str:
        return await bounded(self._call_service(args), ctx, ALL_SECONDS, LATE)

    def read_effects(self) -> tuple[Effect, ...]:
        """The host of Home Assistant."""
        home = self._home()
        return () if home is None else (Effect("network", home.host),)

    def call_effects(self, args: JsonObject) -> tuple[Effect, ...]:
        """A change of what is in the home; only what is easily undone needs no approval."""
        home, domain, service = self._home(), str(args.get("domain") or ""), str(args.get("service") or "")
        if home is None or domain in BLOCKED_DOMAINS:
            return ()
        network = Effect("network", home.host)
        if domain in HARMLESS_DOMAINS:
            return (network,)
        target = ", ".join(entities_of(args)) or domain
        changed = Effect("remote", f"homeassistant:{target}", service="Home Assistant", action=f"{domain}.{service}")
        return (network, changed)

    # What they do

    async def _list_entities(self, args: JsonObject) -> JsonObject:
        home, domain = self._require_home(), _name(args, "domain")
        area, query = str(args.get("area") or "").strip().lower(), str(args.get("query") or "").strip().lower()
        limit = int(args.get("limit") or DEFAULT_ENTITIES)
        states = await home.states()
        areas = await home.areas() if area else {}
        found = [
            _short(one, areas.get(one["entity_id"], ""))
            for one in states
            if (not domain or one["entity_id"].startswith(f"{domain}."))
            and (not area or area in areas.get(one["entity_id"], "").lower())
            and (not query or query in one["entity_id"] or query in _friendly(one).lower())
        ]
        result: JsonObject = {"success": True, "count": len(found), "entities": found[:limit]}
        if len(found) > limit:
            result["note"] = f"only {limit} of {len(found)} are shown; narrow it by domain, area or query"
        elif not found and area:
            known = sorted({name for name in areas.values() if name})
            result["note"] = f"nothing matches; the areas are: {', '.join(known) or 'none'}"
        elif not found:
            result["note"] = f"nothing was found among {len(states)} entities"
        return result

    async def _get_state(self, args: JsonObject) -> JsonObject:
        home, entity = self._require_home(), str(args.get("entity_id") or "").strip().lower()
        _require_entity(entity)
        states = {one["entity_id"]: one for one in await home.states()}
        if entity not in states:
            raise UnknownEntity(entity, nearest_names(entity, states), advice="find it with ha_list_entities")
        found = states[entity]
        attributes = {
            name: _shortened(value) for name, value in found["attributes"].items() if name not in HIDDEN_ATTRIBUTES
        }
        times = {key: found[key] for key in ("last_changed", "last_updated") if found.get(key)}
        return {"success": True, **_short(found), "attributes": attributes, **times}

    async def _list_services(self, args: JsonObject) -> JsonObject:
        home, domain = self._require_home(), _name(args, "domain")
        listed = await home.services()
        known = {one["domain"]: one["services"] for one in listed if one["domain"] not in BLOCKED_DOMAINS}
        if not domain:
            return {"success": True, "domains": {name: sorted(services) for name, services in sorted(known.items())}}
        if domain not in known:
            raise UnknownDomain(domain, known)
        services = {name: _about_service(about) for name, about in sorted(known[domain].items())}
        return {"success": True, "domain": domain, "services": services}

    async def _call_service(self, args: JsonObject) -> JsonObject:
        home, domain, service = self._require_home(), _name(args, "domain"), _name(args, "service")
        if not domain or not service:
            raise HomeFailed("name the domain and the service, for example light and turn_on")
        if domain in BLOCKED_DOMAINS:
            raise HomeFailed(f"services of {domain!r} run code on the machine of Home Assistant, and are never called")
        data = args.get("data") or {}
        if isinstance(data, str):
            # Models write objects as text.
            data = _parsed(data)
        if not isinstance(data, dict):
            raise HomeFailed("data must be an object, for example {'brightness_pct': 40}")
        entities = entities_of(args)
        for entity in entities:
            _require_entity(entity)
        body = {**data, **({"entity_id": entities} if entities else {})}
        changed = await home.call(domain, service, body)
        result: JsonObject = {"success": True, "service": f"{domain}.{service}", "changed": list(map(_short, changed))}
        if not changed:
            result["note"] = "no state changed: it may have been so already, or the device takes a moment"
        return result

    # Around them

    def _home(self) -> HomeApi | None:
        access = SPEC.access(self._client, "ha_list_entities")
        return None if access is None or not access.key else HomeApi(msgspec.structs.replace(access, seconds=SECONDS))

    def _require_home(self) -> HomeApi:
        home = self._home()
        if home is None:
            raise HomeFailed("HASS_TOKEN is not set; run `toolcrib setup ha_list_entities`")
        return home


class UnknownDomain(UnknownName):
    kind = "domain"

    def __init__(self, domain: str, known: dict[str, Any]) -> None:
        super().__init__(domain, sorted(known), advice="list the domains with ha_list_services")


class HomeApi(ApiService):
    """One Home Assistant."""

    name = "homeassistant"

    async def states(self) -> list[dict[str, Any]]:
        answer = await self.access.get_json("/api/states", self.bearer)
        found: list[dict[str, Any]] = self.read(lambda value: [_state(one) for one in value], answer)
        return found

    async def areas(self) -> dict[str, str]:
        """The area of each entity; states do not have it."""
        response = await self.access.post("/api/template", {"template": AREAS}, self.bearer)
        found: dict[str, str] = self.read(
            lambda value: {str(one): str(area) for one, area in value}, _text(response.body)
        )
        return found

    async def services(self) -> list[dict[str, Any]]:
        answer = await self.access.get_json("/api/services", self.bearer)
        found: list[dict[str, Any]] = self.read(
            lambda value: [{"domain": str(one["domain"]), "services": dict(one["services"])} for one in value], answer
        )
        return found

    async def call(self, domain: str, service: str, body: JsonObject) -> list[dict[str, Any]]:
        try:
            answer = await self.access.post_json(f"/api/services/{domain}/{service}", body, self.bearer)
        except ProviderFailed as error:
            if error.kind != "request":
                raise
            asked = f"{domain}.{service}"
            raise HomeFailed(
                f"Home Assistant did not accept {asked!r}; check it and its data with ha_list_services"
            ) from error
        found: list[dict[str, Any]] = self.read(lambda value: [_state(one) for one in value], answer)
        return found


def entities_of(args: JsonObject) -> list[str]:
    """The entities of a call; models pass one as text, several as a list or with commas."""
    given = args.get("entity_id") or []
    listed = given.split(",") if isinstance(given, str) else list(given)
    return [str(one).strip().lower() for one in listed if str(one).strip()]


def _state(one: Any) -> dict[str, Any]:
    state, attributes = one["state"], one.get("attributes") or {}
    if not isinstance(attributes, dict):
        raise TypeError("attributes")
    times = {key: str(one[key]) for key in ("last_changed", "last_updated") if one.get(key)}
    return {"entity_id": str(one["entity_id"]), "state": str(state)[:MAX_TEXT_CHARS], "attributes": attributes, **times}


def _short(one: dict[str, Any], area: str = "") -> JsonObject:
    shown: JsonObject = {"entity_id": one["entity_id"], "state": one["state"]}
    if name := _friendly(one):
        shown["name"] = name
    if unit := one["attributes"].get("unit_of_measurement"):
        shown["unit"] = str(unit)[:20]
    return {**shown, "area": area} if area else shown


def _friendly(one: dict[str, Any]) -> str:
    return str(one["attributes"].get("friendly_name") or "")[:200]


def _shortened(value: Any) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + "…"


def _about_service(about: Any) -> JsonObject:
    about = about if isinstance(about, dict) else {}
    fields = about.get("fields") if isinstance(about.get("fields"), dict) else {}
    described = {name: str((one or {}).get("description") or "")[:200] for name, one in fields.items()}
    return {"description": str(about.get("description") or "")[:300], "fields": described}


def _text(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise HomeFailed('data is no JSON object; pass for example {"brightness_pct": 40}') from None


def _name(args: JsonObject, key: str) -> str:
    text = str(args.get(key) or "").strip().lower()
    if text and not _NAME.fullmatch(text):
        raise HomeFailed(f"{key} is {text[:60]!r}; it has only small letters, digits and underscores")
    return text


def _require_entity(entity: str) -> None:
    if not _ENTITY.fullmatch(entity):
        raise HomeFailed(f"{entity[:60]!r} is no entity; pass an id like light.kitchen, from ha_list_entities")
