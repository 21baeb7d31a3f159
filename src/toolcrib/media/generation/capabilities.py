"""What a service that makes images or videos takes, and the tool's parameters that are left for the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolcrib.core.types import JsonObject

MAX_REFERENCES = 7


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a service. By default, it takes everything that the tool offers."""

    takes_image: bool = True
    max_references: int = MAX_REFERENCES
    aspect_ratios: tuple[str, ...] = ()
    """Empty: all of the tool's."""
    resolutions: tuple[str, ...] = ()
    min_seconds: int | None = None
    max_seconds: int | None = None
    ignores: frozenset[str] = frozenset()
    """Further parameters that it has no use for."""

    def narrow(self, parameters: JsonObject) -> JsonObject:
        """The parameters of the tool without what the service does not take."""
        dropped = set(self.ignores)
        if not self.takes_image:
            dropped |= {"image_url", "reference_image_urls"}
        if not self.max_references:
            dropped.add("reference_image_urls")
        properties = {name: dict(about) for name, about in parameters["properties"].items() if name not in dropped}
        changes: dict[str, JsonObject] = {
            "reference_image_urls": {"maxItems": min(self.max_references, MAX_REFERENCES)},
            "aspect_ratio": {"enum": list(self.aspect_ratios)},
            "resolution": {"enum": list(self.resolutions)},
            "duration": {"minimum": self.min_seconds, "maximum": self.max_seconds},
        }
        for name, about in properties.items():
            about.update({key: value for key, value in changes.get(name, {}).items() if value not in (None, [])})
            if "default" in about and about["default"] not in about.get("enum", [about["default"]]):
                about["default"] = about["enum"][0]
        return {**parameters, "properties": properties}


NO_IMAGES = Capabilities(takes_image=False)
ONE_SQUARE = Capabilities(aspect_ratios=("square",), max_references=0)
NO_EXTRAS = Capabilities(ignores=frozenset({"negative_prompt", "audio", "seed"}))


def image_capabilities(model: str, edit_model: str) -> Capabilities:
    """What OpenAI's models take; other services and their models take everything."""
    changing = {"dall-e-3": NO_IMAGES, "dall-e-2": ONE_SQUARE}.get(edit_model or model, Capabilities())
    ratios = ONE_SQUARE.aspect_ratios if model == "dall-e-2" else ()
    return msgspec.structs.replace(changing, aspect_ratios=ratios)


def plugin_capabilities(given: Any, shapes: tuple[str, ...] = ()) -> Capabilities:
    """What a plugin's `capabilities()` says; whatever it says wrongly or not at all sets no limit.

    `shapes` are the only aspect ratios that the tool knows; empty for any.
    """
    told: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    ratios = _texts(told.get("aspect_ratios"))
    switches = {"supports_audio": "audio", "supports_negative_prompt": "negative_prompt", "supports_seed": "seed"}
    return Capabilities(
        takes_image="image" in _texts(told.get("modalities")),
        max_references=max(0, _number(told.get("max_reference_images")) or 0),
        aspect_ratios=tuple(one for one in ratios if not shapes or one in shapes),
        resolutions=_texts(told.get("resolutions")),
        min_seconds=_number(told.get("min_duration")),
        max_seconds=_number(told.get("max_duration")),
        ignores=frozenset(name for switch, name in switches.items() if told.get(switch) is False),
    )


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, (list, tuple, set)) else ()


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
