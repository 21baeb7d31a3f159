"""`vision_analyze`, called as a model calls it, with a model server that shows which images it got."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.media.conftest import OpenVision
from tests.media.pictures import BLUE, RED, decoded, encoded, is_close, picture, sent_images
from tests.web.sites import Site
from toolcrib.agent.agent import Agent
from toolcrib.agent.host import AgentHost
from toolcrib.config.page_files import owner_folder
from toolcrib.core.context import ToolContext
from toolcrib.core.messages import Text
from toolcrib.core.models import ModelProfile
from toolcrib.media.images import MediaSources
from toolcrib.providers.scripted import ScriptedProvider, calls
from toolcrib.runtime import Runtime
from toolcrib.sessions.store import SessionStore
from toolcrib.testing.model_server import ErrorResponse, ScriptedModelServer, Stream

QUESTION = "Which colours?"


async def look(runtime: Runtime, image_url: Any, question: str = QUESTION) -> dict[str, Any]:
    result = await runtime.call("vision_analyze", {"image_url": image_url, "question": question})
    return dict(json.loads(result.text))


def png_in(runtime: Runtime, name: str = "a.png") -> Path:
    path = Path(runtime.workspace) / name
    path.write_bytes(encoded(picture()))
    return path


def data_url() -> str:
    return "data:image/png;base64," + base64.b64encode(encoded(picture())).decode()


async def test_the_configured_model_answers_about_a_file(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """A path of the session is read, prepared and sent with the question; the result names the model."""
    runtime = open_vision()
    png_in(runtime)

    found = await look(runtime, "a.png")

    assert found["success"] is True
    assert found["analysis"] == "Left red, right blue."
    assert found["model"] == "eyes/look-1"
    assert found["images"] == [{"source": "a.png", "format": "png", "width": 40, "height": 20}]
    (image,) = sent_images(eyes.requests[0].body)
    assert is_close(image.convert("RGB").getpixel((3, 3)), RED)
    assert is_close(image.convert("RGB").getpixel((36, 3)), BLUE)
    asked = eyes.requests[0].body["messages"][-1]["content"]
    assert asked[0] == {"type": "text", "text": QUESTION}


async def test_addresses_and_data_urls_are_images_too(
    open_vision: OpenVision, eyes: ScriptedModelServer, site: Site
) -> None:
    """Several images of any source go into one request, in order."""
    site.pages["/photo"] = (200, {"content-type": "application/octet-stream"}, encoded(picture(80, 20), "WEBP"))
    runtime = open_vision()
    png_in(runtime)

    found = await look(runtime, [f"{site.address}/photo", data_url(), "a.png"])

    assert [one["format"] for one in found["images"]] == ["webp", "png", "png"]
    assert [image.size for image in sent_images(eyes.requests[0].body)] == [(80, 20), (40, 20), (40, 20)]


async def test_a_list_that_was_written_as_text_is_understood(
    open_vision: OpenVision, eyes: ScriptedModelServer
) -> None:
    """Models pass lists as JSON text."""
    runtime = open_vision()
    png_in(runtime, "a.png")
    png_in(runtime, "b.png")

    found = await look(runtime, '["a.png", "b.png"]')

    assert [one["source"] for one in found["images"]] == ["a.png", "b.png"]


async def test_private_addresses_are_refused_for_images(
    open_vision: OpenVision, eyes: ScriptedModelServer, site: Site
) -> None:
    """Images are fetched by the guarded client, so the same addresses are out of reach as for pages."""
    site.pages["/photo"] = (200, {}, encoded(picture()))
    site.pages["/away"] = (302, {"location": "http://169.254.169.254/x.png"}, b"")
    guarded = open_vision(security={"allow_private_urls": False})

    assert "private address" in (await look(guarded, f"{site.address}/photo"))["error"]
    assert "never reached" in (await look(open_vision(), f"{site.address}/away"))["error"]
    assert not eyes.requests
    assert [asked.path for asked in site.requests] == ["/away"]


async def test_images_that_web_extract_saved_can_be_looked_at(
    open_vision: OpenVision, eyes: ScriptedModelServer, site: Site
) -> None:
    """The file that a result names is a handle, in any environment of the session."""
    site.pages["/photo.png"] = (200, {"content-type": "image/png"}, encoded(picture()))
    runtime = open_vision()
    extracted = await runtime.call("web_extract", {"urls": [f"{site.address}/photo.png"]})
    handle = json.loads(extracted.text)["results"][0]["image"]

    found = await look(runtime, handle)

    assert found["success"] is True
    assert len(sent_images(eyes.requests[0].body)) == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.png", "there is no file"),
        (".", "folder"),
        ("notes.txt", "not an image that can be read"),
        ("/proc/self/environ", "never read"),
        ("ftp://host/a.png", "there is no file"),
    ],
)
async def test_what_is_no_image_is_refused_with_a_reason(open_vision: OpenVision, name: str, reason: str) -> None:
    """An error says what is wrong with which image."""
    runtime = open_vision(yolo=True)
    (Path(runtime.workspace) / "notes.txt").write_text("no image")

    found = await look(runtime, name)

    assert reason in found["error"]


async def test_a_failing_model_is_an_error_with_its_reason(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """The message of the server reaches the model that asked."""
    eyes.add(ErrorResponse(400, "this model has no eyes"))

    found = await look(open_vision(), data_url())

    assert found["success"] is False
    assert "no eyes" in found["error"]


async def test_a_model_that_takes_too_long_is_given_up(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """One call has one time limit, and the connection is closed."""
    runtime = open_vision(vision={"timeout": 4, "ocr": False})
    await look(runtime, data_url())
    eyes.add(Stream("never", stall_after=0))

    found = await look(runtime, data_url())

    assert "took longer than 4 seconds" in found["error"]
    assert await eyes.until(lambda server: server.hang_ups == 1)


async def test_too_many_images_are_refused_before_any_is_read(open_vision: OpenVision, site: Site) -> None:
    """The limit is in the message."""
    found = await look(open_vision(vision={"max_images": 2}), [f"{site.address}/{number}" for number in range(3)])

    assert "at most 2" in found["error"]
    assert not site.requests


async def test_without_a_model_that_sees_the_remedy_is_named(open_vision: OpenVision, site: Site) -> None:
    """Nothing is fetched for nobody."""
    found = await look(open_vision(auxiliary={}), f"{site.address}/photo")

    assert "auxiliary.vision.model" in found["error"]
    assert not site.requests


@pytest.mark.services
async def test_results_from_addresses_are_untrusted(open_vision: OpenVision, site: Site) -> None:
    """What strangers may have drawn counts as untrusted; a picture of the workspace does not."""
    site.pages["/photo"] = (200, {}, encoded(picture()))
    runtime = open_vision()
    png_in(runtime)

    own = await runtime.call("vision_analyze", {"image_url": "a.png", "question": "?"})
    foreign = await runtime.call("vision_analyze", {"image_url": f"{site.address}/photo", "question": "?"})

    assert [effect.kind for effect in own.effects or ()] == ["read"]
    assert [(effect.kind, effect.target) for effect in foreign.effects or ()] == [("network", "127.0.0.1")]
    assert (own.origin, foreign.origin) == ("trusted", "untrusted")


# Who looks


async def ask_agent(runtime: Runtime, profile: ModelProfile) -> ScriptedProvider:
    """An agent whose model looks at one image of the workspace."""
    png_in(runtime)
    provider = ScriptedProvider(
        [calls("vision_analyze", {"image_url": "a.png", "question": QUESTION}), "I see."], profile=profile
    )
    host = AgentHost(runtime=runtime, store=SessionStore.in_memory(), model=provider)
    agent = Agent(host=host, model=provider, toolsets=["vision"])
    try:
        await agent.run("What is in a.png?")
    finally:
        await host.close()
    return provider


@pytest.mark.services
async def test_a_main_model_that_sees_gets_the_image_itself(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """Without `auxiliary.vision`, the image is a part of the tool's result, and no other model is asked."""
    provider = await ask_agent(open_vision(auxiliary={}), ModelProfile())

    result = provider.requests[-1].messages[-1]
    (image,) = result.images
    assert decoded(base64.b64decode(image.data)).size == (40, 20)
    assert isinstance(result.content[0], Text)
    assert json.loads(result.content[0].text)["question"] == QUESTION
    assert not eyes.requests


@pytest.mark.services
async def test_the_named_vision_model_wins_over_a_main_model_that_sees(
    open_vision: OpenVision, eyes: ScriptedModelServer
) -> None:
    """Explicit config wins."""
    provider = await ask_agent(open_vision(), ModelProfile())

    assert not provider.requests[-1].messages[-1].images
    assert "Left red" in provider.requests[-1].messages[-1].text
    assert len(eyes.requests) == 1


async def test_for_a_blind_main_model_the_auxiliary_model_looks(
    open_vision: OpenVision, eyes: ScriptedModelServer
) -> None:
    """An image is never sent to a model that cannot see."""
    provider = await ask_agent(open_vision(auxiliary={"model": "eyes/look-1"}), ModelProfile(sees_images=False))

    assert "Left red" in provider.requests[-1].messages[-1].text
    assert len(sent_images(eyes.requests[0].body)) == 1


async def test_show_never_asks_for_a_description(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """With `vision.show: never` even a model that sees gets words."""
    runtime = open_vision(auxiliary={"model": "eyes/look-1"}, vision={"show": "never", "ocr": False})
    provider = await ask_agent(runtime, ModelProfile())

    assert not provider.requests[-1].messages[-1].images
    assert len(eyes.requests) == 1


async def test_outside_an_agent_the_configured_model_looks(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """A program without an agent gets words by the model of the config."""
    found = await look(open_vision(auxiliary={}, model="eyes/look-1"), data_url())

    assert found["model"] == "eyes/look-1"
    assert len(eyes.requests) == 1


async def test_other_tools_can_have_images_looked_at(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """`services.vision.analyze` takes bytes, and adds the caller's facts to the result."""
    runtime = open_vision()
    ctx = ToolContext(services=runtime.services)

    found = await runtime.services.vision.analyze(
        [encoded(picture())], QUESTION, ctx, facts={"screenshot_path": "/x.png"}
    )

    assert json.loads(str(found))["screenshot_path"] == "/x.png"
    assert len(sent_images(eyes.requests[0].body)) == 1


async def test_cached_images_are_their_owners(open_vision: OpenVision, eyes: ScriptedModelServer) -> None:
    """A path in the cache is read for the owner it was saved for; for anybody else it is a path like any other."""
    runtime = open_vision()
    home = runtime.settings.home
    store = SessionStore(home.sessions_file)
    sessions = {owner: store.create(owner=owner).id for owner in ("", "anna", "bert")}
    folder = owner_folder(home.web_dir, "anna")
    folder.mkdir(parents=True)
    hers, mine = folder / "a.png", home.web_dir / "a.png"
    for path in (hers, mine):
        path.write_bytes(encoded(picture()))

    sources = MediaSources(home, runtime.services)
    kinds = {
        (owner, path == hers): sources.kind_of(str(path), runtime.context(session_id=session))
        for owner, session in sessions.items()
        for path in (hers, mine)
    }

    assert {key for key, kind in kinds.items() if kind == "own"} == {("anna", True), ("", False)}
