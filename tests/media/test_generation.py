"""`image_generate` and `video_generate`, called as a model calls them, against servers by the services' public APIs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.media.pictures import encoded, picture
from tests.media.services import KEY, Asking, OpenMedia, as_json, called, content
from tests.web.sites import Page, Site, SiteRequest
from toolcrib.core.types import Unavailable
from toolcrib.plugins.context import Declaration
from toolcrib.runtime import Runtime
from toolcrib.tools.generation import IMAGE_VARIABLES, VIDEO_VARIABLES, check_images, check_videos, check_xai

PNG = encoded(picture())
MP4 = b"\x00\x00\x00\x18ftypmp42" + b"\x00" * 64
DATA_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()

ROUTES: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("/images/generations", {"data": [{"b64_json": base64.b64encode(PNG).decode()}]}),
    "fal": ("/fal-ai/flux/schnell", {"images": [{"url": DATA_URL}]}),
    "gemini": (
        "/v1beta/models/gemini-2.5-flash-image:generateContent",
        {"candidates": [{"content": {"parts": [{"text": "Here"}, {"inlineData": {"data": DATA_URL.split(",")[1]}}]}}]},
    ),
    "replicate": (
        "/v1/models/black-forest-labs/flux-schnell/predictions",
        {"status": "succeeded", "output": [DATA_URL]},
    ),
}
"""The route of each service, and its answer with an image."""


@pytest.fixture(autouse=True)
def no_service_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*IMAGE_VARIABLES, *VIDEO_VARIABLES, "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEST_KEY", KEY)


def image_config(site: Site, provider: str, **more: Any) -> dict[str, Any]:
    return {"provider": provider, "base_url": site.address, "key_env": "TEST_KEY", **more}


@pytest.mark.parametrize("provider", ROUTES)
async def test_each_service_makes_an_image(open_media: OpenMedia, site: Site, provider: str) -> None:
    """The prompt and the shape are sent with the key; the file has the extension of what came."""
    path, answer = ROUTES[provider]
    site.pages[path] = as_json(answer)
    runtime = open_media(image_gen=image_config(site, provider))

    found = await called(runtime, "image_generate", prompt="A red house", aspect_ratio="portrait")

    assert found["success"] is True, found
    assert found["provider"] == provider
    assert found["image"].endswith(".png")
    assert content(found["image"]) == PNG
    (asked,) = site.requests
    assert "A red house" in asked.body.decode()
    assert any(word in asked.body.decode() for word in ("1024x1536", "portrait_16_9", "9:16"))
    assert any(KEY in value for value in asked.headers.values())


@pytest.mark.parametrize("provider", ROUTES)
async def test_each_service_changes_an_image(open_media: OpenMedia, site: Site, provider: str) -> None:
    """The image to change is read by the rules for files and sent along."""
    _, answer = ROUTES[provider]
    edits = {"openai": "/images/edits", "fal": "/mine/edit", "replicate": "/v1/models/mine/edit/predictions"}
    site.pages[edits.get(provider, "/v1beta/models/mine/edit:generateContent")] = as_json(answer)
    runtime = open_media(image_gen=image_config(site, provider, edit_model="mine/edit"))
    (Path(runtime.workspace) / "house.png").write_bytes(PNG)

    found = await called(
        runtime, "image_generate", prompt="Paint it blue", image_url="house.png", reference_image_urls=[DATA_URL + "AA"]
    )

    assert found["success"] is True, found
    assert found["modality"] == "image"
    (asked,) = site.requests
    assert PNG in asked.body or DATA_URL.split(",")[1].encode() in asked.body


async def test_what_is_no_image_is_not_saved(open_media: OpenMedia, site: Site) -> None:
    """A page that calls itself an image is refused, and so is the address of another host's metadata."""
    site.pages["/images/generations"] = as_json({"data": [{"url": f"{site.address}/page"}]})
    site.pages["/page"] = (200, {"content-type": "image/png"}, b"<html>")
    runtime = open_media(image_gen={"base_url": site.address})

    assert "none of the images" in (await called(runtime, "image_generate", prompt="A house"))["error"]

    site.pages["/images/generations"] = as_json({"data": [{"url": "http://169.254.169.254/latest"}]})
    assert "never reached" in (await called(runtime, "image_generate", prompt="A house"))["error"]


async def test_the_price_is_in_the_question(open_media: OpenMedia, asking: Asking, site: Site) -> None:
    """A service elsewhere costs money, so the person is asked first; a server on this machine is not."""
    runtime = open_media(image_gen={"provider": "openai", "key_env": "TEST_KEY", "price_usd": 0.25})

    effects = runtime.services.generation.image_effects({"prompt": "A house"}, runtime.context())

    assert [(one.kind, one.target) for one in effects] == [
        ("network", "api.openai.com"),
        ("spend", "about $0.25 for an image by gpt-image-1 at OpenAI"),
    ]
    site.pages["/images/generations"] = as_json(ROUTES["openai"][1])
    await called(open_media(image_gen={"base_url": site.address}), "image_generate", prompt="A house")
    assert asking.requests == []


async def test_nothing_is_sent_without_approval(
    open_media: OpenMedia, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The person sees the price and may refuse."""
    monkeypatch.setenv("FAL_KEY", KEY)
    asking.choice = "deny"

    result = await open_media().call("image_generate", {"prompt": "A house"})

    assert result.is_error
    assert "about $0.003 for an image by fal-ai/flux/schnell at fal" in str(asking.requests)


async def test_a_prediction_that_takes_longer_is_waited_for_and_cancelled_at_the_limit(
    open_media: OpenMedia, site: Site
) -> None:
    """What goes on elsewhere costs money, so it is cancelled when nobody waits for it any more."""
    urls = {"get": f"{site.address}/p/1", "cancel": f"{site.address}/p/1/cancel"}
    site.pages[ROUTES["replicate"][0]] = as_json({"status": "starting", "urls": urls})
    site.pages["/p/1"] = as_json({"status": "processing"})
    site.pages["/p/1/cancel"] = as_json({})
    runtime = open_media(image_gen=image_config(site, "replicate", timeout=0.5))

    found = await called(runtime, "image_generate", prompt="A house")

    assert "was not done within 0.5 seconds" in found["error"]
    assert site.requests[-1].path == "/p/1/cancel"
    site.pages["/p/1"] = as_json({"status": "succeeded", "output": DATA_URL})
    assert (await called(runtime, "image_generate", prompt="A house"))["success"] is True


async def test_the_key_goes_to_no_other_host(open_media: OpenMedia, site: Site) -> None:
    """An answer that sends the next question elsewhere is refused."""
    urls = {"get": "https://elsewhere.example/p/1"}
    site.pages[ROUTES["replicate"][0]] = as_json({"status": "starting", "urls": urls})

    found = await called(open_media(image_gen=image_config(site, "replicate")), "image_generate", prompt="A house")

    assert "cannot be understood" in found["error"]


class PluginImages:
    """As a plugin's author writes one."""

    name = "mine"
    display_name = "My images"

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: list[Any] = []

    def is_available(self) -> bool:
        return True

    def capabilities(self) -> dict[str, Any]:
        return {"modalities": ["text"]}

    def generate(self, prompt: str, aspect_ratio: str = "landscape", **options: Any) -> Any:
        self.asked.append((prompt, aspect_ratio))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class LoadedStub:
    def __init__(self, provider: Any) -> None:
        self.declarations = [Declaration("image_gen_provider", "mine", (provider,), {}, None)]  # type: ignore[arg-type]


def with_plugin(runtime: Runtime, provider: Any) -> Runtime:
    runtime.services.provide("plugins", [LoadedStub(provider)])
    return runtime


async def test_a_plugin_makes_images(open_media: OpenMedia) -> None:
    """What a plugin registered is used before the services with keys, and by its name."""
    plugin = PluginImages({"success": True, "image": "/cache/a.png", "model": "m1"})
    runtime = with_plugin(open_media(image_gen={"provider": "mine"}), plugin)

    found = await called(runtime, "image_generate", prompt="A house", aspect_ratio="square")

    assert (found["image"], found["provider"], found["model"]) == ("/cache/a.png", "mine", "m1")
    assert plugin.asked == [("A house", "square")]
    refused = await called(runtime, "image_generate", prompt="A house", image_url=DATA_URL)
    assert "makes images from text only" in refused["error"]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"success": False, "error": "out of paint"}, "My images failed: out of paint"),
        (RuntimeError("boom"), "My images failed (RuntimeError)"),
        ("a text", "cannot be understood"),
    ],
)
async def test_a_plugin_that_fails_is_one_sentence(open_media: OpenMedia, answer: Any, sentence: str) -> None:
    """Foreign code may raise or give anything."""
    runtime = with_plugin(open_media(image_gen={"provider": "mine"}), PluginImages(answer))

    assert sentence in (await called(runtime, "image_generate", prompt="A house"))["error"]


async def test_an_unknown_service_is_named_with_the_nearest(open_media: OpenMedia) -> None:
    runtime = open_media(image_gen={"provider": "replicat"})

    found = await called(runtime, "image_generate", prompt="A house")

    assert "replicate" in found["error"]
    assert "toolcrib setup image_generate" in (await called(open_media(), "image_generate", prompt="x"))["error"]


# Videos


def fal_video(site: Site) -> None:
    urls = {name: f"{site.address}/r/{name}" for name in ("status_url", "response_url", "cancel_url")}
    site.pages["/kling"] = as_json(urls)
    states = iter(["IN_QUEUE", "IN_PROGRESS"])

    def status(_: SiteRequest) -> Page:
        return as_json({"status": next(states, "COMPLETED")})

    site.pages["/r/status_url"] = status
    site.pages["/r/response_url"] = as_json({"video": {"url": f"{site.address}/a.mp4"}})
    site.pages["/a.mp4"] = (200, {}, MP4)


def xai_video(site: Site) -> None:
    for route in ("generations", "edits", "extensions"):
        site.pages[f"/videos/{route}"] = as_json({"request_id": "77"})
    states = iter([{"status": "pending"}])

    def status(_: SiteRequest) -> Page:
        return as_json(next(states, {"video": {"url": f"{site.address}/a.mp4"}}))

    site.pages["/videos/77"] = status
    site.pages["/a.mp4"] = (200, {}, MP4)


VIDEO_SERVICES: dict[str, tuple[str, str, Callable[[Site], None]]] = {
    "fal": ("FAL_KEY", "/kling", fal_video),
    "xai": ("XAI_API_KEY", "/videos/generations", xai_video),
}


@pytest.mark.parametrize("provider", VIDEO_SERVICES)
async def test_each_service_makes_a_video(
    open_media: OpenMedia, site: Site, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked until it is done, and the file is fetched without the key."""
    variable, path, serve = VIDEO_SERVICES[provider]
    monkeypatch.setenv(variable, KEY)
    serve(site)
    runtime = open_media(video_gen={"provider": provider, "base_url": site.address, "model": "kling"})

    found = await called(runtime, "video_generate", prompt="Waves", image_url=DATA_URL, duration=5, seed=7)

    assert found["success"] is True, found
    assert found["video"].endswith(".mp4")
    assert content(found["video"]) == MP4
    sent = json.loads(site.requests[0].body)
    assert sent["prompt"] == "Waves"
    assert DATA_URL in json.dumps(sent)
    assert site.requests[0].path == path
    assert "authorization" not in site.requests[-1].headers


@pytest.mark.parametrize(("tool", "route"), [("xai_video_edit", "edits"), ("xai_video_extend", "extensions")])
async def test_xai_changes_and_extends_videos(
    open_media: OpenMedia, site: Site, tool: str, route: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service fetches the video itself, so its address must be public."""
    monkeypatch.setenv("XAI_API_KEY", KEY)
    xai_video(site)
    runtime = open_media(video_gen={"base_url": site.address})

    found = await called(runtime, tool, prompt="Make it rain", video_url="https://videos.example/a.mp4")

    assert found["success"] is True, found
    assert site.requests[0].path == f"/videos/{route}"
    assert json.loads(site.requests[0].body)["video"] == {"url": "https://videos.example/a.mp4"}
    assert "public https" in (await called(runtime, tool, prompt="Rain", video_url="a.mp4"))["error"]


# Availability


@pytest.mark.parametrize(
    ("check", "variable"), [(check_images, "FAL_KEY"), (check_videos, "FAL_KEY"), (check_xai, "XAI_API_KEY")]
)
def test_a_tool_without_a_service_says_what_to_do(
    check: Callable[[], Any], variable: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A key, or a section of the config, makes it available."""
    answer = check()

    assert isinstance(answer, Unavailable)
    assert "toolcrib setup" in answer.remedy
    monkeypatch.setenv(variable, KEY)
    assert check() is True


async def test_a_rule_lets_unattended_calls_spend(open_media: OpenMedia, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the guide says: with the rule, nobody is asked."""
    monkeypatch.setenv("FAL_KEY", KEY)
    runtime = open_media(approvals={"rules": ["allow tool:image_generate where /aspect_ratio equals square"]}).load()
    entry = runtime.registry.get_entry("image_generate")
    assert entry is not None
    decided = {}
    for ratio in ("square", "landscape"):
        args = {"prompt": "A house", "aspect_ratio": ratio}
        ctx = runtime.context(tool_name="image_generate")
        effects = runtime.services.generation.image_effects(args, ctx)
        decided[ratio] = runtime.gate.judge(entry, args, effects, ctx).decision

    assert decided == {"square": "allow", "landscape": "ask"}


@pytest.mark.parametrize(
    ("settings", "images", "ratios"),
    [
        ({"model": "gpt-image-1"}, {"image_url", "reference_image_urls"}, 3),
        ({"model": "dall-e-3"}, set(), 3),
        ({"model": "dall-e-3", "edit_model": "gpt-image-1"}, {"image_url", "reference_image_urls"}, 3),
        ({"model": "dall-e-2"}, {"image_url"}, 1),
    ],
)
async def test_the_schema_follows_the_configured_model(
    open_media: OpenMedia, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], images: set[str], ratios: int
) -> None:
    """A model is offered only the parameters that the one that makes images takes."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    runtime = open_media(image_gen={"provider": "openai", **settings})
    monkeypatch.setenv("TOOLCRIB_HOME", str(runtime.settings.home.root))

    (found,) = [
        one["function"]["parameters"]["properties"]
        for one in runtime.definitions(["image_gen"]).tools
        if one["function"]["name"] == "image_generate"
    ]

    assert {"image_url", "reference_image_urls"} & found.keys() == images
    assert len(found["aspect_ratio"]["enum"]) == ratios


async def test_a_model_that_takes_no_images_is_not_asked_to_change_one(
    open_media: OpenMedia, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    runtime = open_media(image_gen={"provider": "openai", "model": "dall-e-3"})

    found = await called(runtime, "image_generate", prompt="a hat", image_url="data:image/png;base64,AAAA")

    assert "makes images from text only" in found["error"]


# The schema follows a plugin's service, too

IMAGE_PLUGIN = """
from agent.image_gen_provider import DEFAULT_ASPECT_RATIO, ImageGenProvider, success_response


class Atelier(ImageGenProvider):
    @property
    def name(self):
        return "atelier"

    def list_models(self):
        return [{"id": "oil", "display": "Oil", "price": "$0.01/image"}]

    def get_setup_schema(self):
        return {"name": "Atelier", "env_vars": [{"key": "ATELIER_KEY", "prompt": "Key"}]}

    def capabilities(self):
        return %r

    def generate(self, prompt, aspect_ratio=DEFAULT_ASPECT_RATIO, *, image_url=None, reference_image_urls=None, **kw):
        given = [image_url, *(reference_image_urls or [])] if image_url else []
        return success_response(
            image="/cache/oil.png", model="oil", prompt=prompt, aspect_ratio=aspect_ratio, provider=self.name,
            modality="image" if given else "text",
        )


def register(ctx):
    ctx.register_image_gen_provider(Atelier())
"""
VIDEO_PLUGIN = """
from agent.video_gen_provider import VideoGenProvider


class Studio(VideoGenProvider):
    @property
    def name(self):
        return "studio"

    def capabilities(self):
        return {**super().capabilities(), **%r}

    def generate(self, prompt, **kwargs):
        return {"success": True, "video": "/cache/a.mp4", "model": "reel"}


def register(ctx):
    ctx.register_video_gen_provider(Studio())
"""


@pytest.fixture
def open_with_plugin(open_media: OpenMedia, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Runtime]:
    """Runtimes with a plugin in their home that knows nothing but the names of the reference."""

    def make(code: str, capabilities: Any, **sections: Any) -> Runtime:
        runtime = open_media(plugins={"enabled": ["maker"]}, **sections)
        home = runtime.settings.home
        monkeypatch.setenv("TOOLCRIB_HOME", str(home.root))
        folder = home.plugins_dir / "maker"
        folder.mkdir(parents=True)
        (folder / "plugin.yaml").write_text("name: maker\nversion: 1.0.0\ndescription: Makes\nkind: backend\n")
        (folder / "__init__.py").write_text(code % (capabilities,))
        return runtime.load()

    return make


def parameters_of(runtime: Runtime, tool: str) -> dict[str, Any]:
    (found,) = [one["function"] for one in runtime.definitions().tools if one["function"]["name"] == tool]
    return dict(found["parameters"]["properties"])


@pytest.mark.parametrize(
    ("capabilities", "references", "shapes"),
    [
        ({"modalities": ["text", "image"], "max_reference_images": 4}, 4, 3),
        ({"modalities": ["text", "image"], "max_reference_images": 0}, 0, 3),
        ({"modalities": ["text", "image"], "aspect_ratios": ["square", "9:16"]}, 0, 1),
        ({"modalities": ["text"], "max_reference_images": 4}, None, 3),
        ("nonsense", None, 3),
    ],
)
async def test_the_schema_follows_a_plugins_service(
    open_with_plugin: Callable[..., Runtime], capabilities: Any, references: int | None, shapes: int
) -> None:
    """The plugin alone makes the tool available; what it does not take is neither offered nor passed on."""
    runtime = open_with_plugin(IMAGE_PLUGIN, capabilities)

    offered = parameters_of(runtime, "image_generate")

    assert ("image_url" in offered) == (references is not None)
    assert offered.get("reference_image_urls", {}).get("maxItems", 0) == (references or 0)
    assert len(offered["aspect_ratio"]["enum"]) == shapes
    assert offered["aspect_ratio"]["default"] in offered["aspect_ratio"]["enum"]
    made = await called(runtime, "image_generate", prompt="A house", aspect_ratio="square")
    assert (made["provider"], made["model"], made["aspect_ratio"]) == ("atelier", "oil", "square")
    many = [f"{DATA_URL}{'A' * 4 * number}" for number in range(6)]
    refused = await called(runtime, "image_generate", prompt="x", image_url=many[0], reference_image_urls=many[1:])
    assert ("takes at most" if references is not None else "from text only") in refused["error"]


async def test_a_configured_service_comes_before_the_schema_of_a_plugin(
    open_with_plugin: Callable[..., Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAL_KEY", KEY)
    runtime = open_with_plugin(IMAGE_PLUGIN, {"modalities": ["text"]}, image_gen={"provider": "fal"})

    assert "reference_image_urls" in parameters_of(runtime, "image_generate")


async def test_the_schema_of_videos_follows_the_service(
    open_with_plugin: Callable[..., Runtime], open_media: OpenMedia, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin's by its capabilities, xAI's by what its API takes, and fal's models take everything."""
    limits = {"aspect_ratios": ["1:1"], "max_duration": 8, "supports_audio": True}
    offered = parameters_of(open_with_plugin(VIDEO_PLUGIN, limits), "video_generate")
    assert offered["aspect_ratio"]["enum"] == ["1:1"]
    assert offered["duration"]["maximum"] == 8
    assert "audio" in offered
    assert not {"image_url", "negative_prompt"} & offered.keys()

    monkeypatch.setenv("XAI_API_KEY", KEY)
    monkeypatch.delenv("TOOLCRIB_HOME")
    assert not {"audio", "seed", "negative_prompt"} & parameters_of(open_media(), "video_generate").keys()
    monkeypatch.setenv("FAL_KEY", KEY)
    assert {"audio", "seed", "negative_prompt"} <= parameters_of(open_media(), "video_generate").keys()
