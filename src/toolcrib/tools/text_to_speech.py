"""Speech: reads a text aloud into an audio file."""

from __future__ import annotations

from typing import Any

from toolcrib.core.context import ToolContext
from toolcrib.core.types import Effect, JsonObject, Unavailable
from toolcrib.registry import registry
from toolcrib.registry.availability import runs_in_place
from toolcrib.tools.checks import check_client, config_text, has_program, has_variable

KEY_VARIABLES = (
    "ELEVENLABS_API_KEY", "MINIMAX_API_KEY", "OPENAI_API_KEY", "MISTRAL_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY",
)  # fmt: skip
PROGRAMS = ("espeak-ng", "edge-tts")


async def text_to_speech(args: JsonObject, *, ctx: ToolContext, **_: Any) -> Any:
    return await ctx.services.speech.speak(args, ctx)


def speech_effects(args: JsonObject, ctx: ToolContext) -> tuple[Effect, ...]:
    """The service that gets the text, what it charges, and the file that is written."""
    return ctx.services.speech.speak_effects(args, ctx)


@runs_in_place
def check_speech() -> bool | Unavailable:
    """Whether a program that speaks is installed, or a service is configured."""
    if has_variable(*KEY_VARIABLES) or "tts:" in config_text():
        return check_client()
    if any(map(has_program, PROGRAMS)):
        return True
    return Unavailable(
        "nothing that speaks is installed",
        "run `apt install espeak-ng`, or `toolcrib setup text_to_speech` to enter the key of a service",
    )


TTS_SCHEMA: JsonObject = {
    "name": "text_to_speech",
    "description": (
        "Read a text aloud into an audio file. Returns its path in `file_path`, and in `media_tag` the text that makes "
        "a messenger send it as a voice message: put that into your answer as it is."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 1, "description": "What to say; plain sentences without Markdown"},
            "output_path": {
                "type": "string",
                "description": "Where to save it: .ogg, .mp3, .wav or .flac; in the cache by default",
            },
        },
        "required": ["text"],
    },
}

registry.register(
    name="text_to_speech",
    toolset="tts",
    schema=TTS_SCHEMA,
    handler=text_to_speech,
    check_fn=check_speech,
    is_async=True,
    emoji="🔊",
    effects=speech_effects,
)
