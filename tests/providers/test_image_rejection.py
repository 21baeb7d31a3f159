"""A server that takes no images does not make a conversation with one impossible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.web.settings import web_settings
from toolcrib.core.messages import Image, Message, RequestedCall, Text, user_message
from toolcrib.core.models import Delta, ModelError, ModelRequest, Notice, Provider
from toolcrib.providers.create import create_provider
from toolcrib.testing.model_server import ErrorResponse, ScriptedModelServer

PICTURE = Image(media_type="image/png", data="aGk=")
BLIND = [
    ErrorResponse(400, "Failed to deserialize: unknown variant `image_url`, expected `text`"),
    ErrorResponse(400, "Invalid content type. image_url is only supported by certain models."),
    ErrorResponse(404, "No endpoints found that support image input"),
    ErrorResponse(500, "image input is not supported - hint: you may need to provide the mmproj"),
]


def opened(server: ScriptedModelServer, home: Path) -> tuple[Provider, str]:
    providers = {"attic": {"base_url": server.base_url, "model": "text-1"}}
    return create_provider(web_settings(home, providers=providers, model={"default": "attic/text-1"}))


def conversation(*, asked: Message | None = None) -> ModelRequest:
    """A tool showed an image, and the talk goes on."""
    call = RequestedCall(id="call_1", name="vision_analyze", arguments="{}")
    messages = [
        user_message("What is in a.png?"),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", call_id="call_1", name="vision_analyze", content=(Text("{}"), PICTURE)),
        *([asked] if asked is not None else []),
    ]
    return ModelRequest(model="text-1", messages=messages)


def images_in(body: dict[str, Any]) -> int:
    return json.dumps(body).count('"image_url": {')


@pytest.mark.parametrize("refusal", BLIND, ids=lambda refusal: str(refusal.status) + refusal.message[:20])
async def test_the_images_of_the_history_are_left_out(refusal: ErrorResponse, tmp_path: Path) -> None:
    """The answer is given without them, this is announced, and from then on the model counts as one that cannot see."""
    seen: list[Delta] = []
    with ScriptedModelServer([refusal, "No eyes.", "Still none."]) as server:
        provider, model = opened(server, tmp_path)

        first = await provider.complete(conversation(), seen.append)
        await provider.complete(conversation(asked=user_message("And now?")), seen.append)
        await provider.close()

        assert first.message.text == "No eyes."
        assert [images_in(one.body) for one in server.requests] == [1, 0, 0]
        assert not provider.profile(model).sees_images
        assert [one.kind for one in seen if isinstance(one, Notice)] == ["retry"]


async def test_an_image_that_the_user_has_just_sent_is_never_left_out(tmp_path: Path) -> None:
    """An answer about nothing would be worse than an error."""
    with ScriptedModelServer([BLIND[0]]) as server:
        provider, _ = opened(server, tmp_path)

        with pytest.raises(ModelError, match="image_url"):
            await provider.complete(conversation(asked=user_message("And this?", [PICTURE])), lambda _: None)
        await provider.close()

        assert len(server.requests) == 1


async def test_one_bad_image_does_not_make_a_model_blind(tmp_path: Path) -> None:
    """An image that is too large is left out, but the next one is sent."""
    refusal = ErrorResponse(400, "messages.2: image exceeds 5 MB maximum")
    with ScriptedModelServer([refusal, "Fine."]) as server:
        provider, model = opened(server, tmp_path)

        await provider.complete(conversation(), lambda _: None)
        await provider.close()

        assert provider.profile(model).sees_images


async def test_other_failures_are_told_as_they_are(tmp_path: Path) -> None:
    """A refusal that has nothing to do with images changes nothing."""
    with ScriptedModelServer([ErrorResponse(400, "temperature is out of range")]) as server:
        provider, _ = opened(server, tmp_path)

        with pytest.raises(ModelError, match="temperature"):
            await provider.complete(conversation(), lambda _: None)
        await provider.close()

        assert len(server.requests) == 1
