"""A tool file in the form that the reference system documents: handler, schema, check, registration."""

import json
import os


def check_weather_requirements() -> bool:
    return bool(os.getenv("WEATHER_API_KEY"))


def weather_tool(location: str, units: str = "metric") -> str:
    api_key = os.getenv("WEATHER_API_KEY")
    if not api_key:
        return json.dumps({"error": "WEATHER_API_KEY not configured"})
    return json.dumps({"location": location, "temp": 22, "units": units})


WEATHER_SCHEMA = {
    "name": "weather",
    "description": "Tell the weather at a place.",
    "parameters": {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "A city, or coordinates such as '51.5,-0.1'"},
            "units": {
                "type": "string",
                "enum": ["metric", "imperial"],
                "description": "Which units to answer in",
                "default": "metric",
            },
        },
        "required": ["location"],
    },
}


from tools.registry import registry  # noqa: E402 - tool files of the reference system import it here

registry.register(
    name="weather",
    toolset="weather",
    schema=WEATHER_SCHEMA,
    handler=lambda args, **kw: weather_tool(location=args.get("location", ""), units=args.get("units", "metric")),
    check_fn=check_weather_requirements,
    requires_env=["WEATHER_API_KEY"],
)
