"""Images are made upright, small, plain and harmless before a model sees them."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator

import pytest
from PIL import Image

from tests.media.pictures import BLUE, RED, decoded, encoded, is_close, picture
from toolcrib.config.media_settings import VisionSettings
from toolcrib.media.image_worker import prepare
from toolcrib.media.images import ImagePreparer, MediaFailed, from_data_url, local_path


@pytest.fixture(scope="module")
def preparer() -> Iterator[ImagePreparer]:
    one = ImagePreparer(VisionSettings())
    yield one
    one.close()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "ICO", "PPM", "AVIF"])
async def test_every_common_format_becomes_one_that_models_accept(preparer: ImagePreparer, kind: str) -> None:
    """Only PNG and JPEG reach a model: a type that its server refuses would stay in the history for good."""
    found = await preparer.prepare(encoded(picture(), kind))

    shown = decoded(found.data)
    assert found.media_type == f"image/{str(shown.format).lower()}"
    assert shown.format in ("PNG", "JPEG")
    assert found.format == kind
    assert is_close(shown.convert("RGB").getpixel((3, shown.height // 2)), RED)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
async def test_every_mode_of_pixels_is_understood(preparer: ImagePreparer, mode: str) -> None:
    """Palettes, transparency, print colours and deep grey become ordinary pixels."""
    image = picture(mode=mode) if mode != "I;16" else picture(mode="L").convert("I").point(lambda x: x * 200)
    found = await preparer.prepare(encoded(image, "TIFF" if mode in ("CMYK", "I;16") else "PNG"))

    assert decoded(found.data).mode in ("L", "RGB")
    assert decoded(found.data).size == (40, 20)


async def test_a_photo_is_turned_upright(preparer: ImagePreparer) -> None:
    """The camera's note about its orientation is applied, because models do not read it."""
    exif = Image.Exif()
    exif[0x0112] = 6

    found = await preparer.prepare(encoded(picture(400, 200), "JPEG", exif=exif.tobytes()))

    shown = decoded(found.data)
    assert shown.size == (200, 400)
    assert is_close(shown.getpixel((100, 20)), RED)
    assert is_close(shown.getpixel((100, 380)), BLUE)


async def test_nothing_but_pixels_is_kept(preparer: ImagePreparer) -> None:
    """Place, camera and comments of a photo do not leave the machine."""
    exif = Image.Exif()
    exif[0x010F] = "SecretCamera"
    jpeg = encoded(picture(), "JPEG", exif=exif.tobytes(), comment=b"SecretComment", icc_profile=b"SecretProfile" * 20)

    found = await preparer.prepare(jpeg)

    assert b"Secret" in jpeg
    assert b"Secret" not in found.data


async def test_a_large_image_is_scaled_to_the_limit(preparer: ImagePreparer) -> None:
    """The longer side becomes 1568 pixels, and the proportions stay."""
    found = await preparer.prepare(encoded(picture(4000, 1000), "JPEG"))

    assert (found.original_width, found.original_height) == (4000, 1000)
    assert (found.width, found.height) == (1568, 392)


def test_noise_still_fits_into_a_request() -> None:
    """However badly an image compresses, it gets small enough to embed."""
    noise = Image.effect_noise((300, 300), 200).convert("RGB")

    found, data = prepare(encoded(noise), {"max_side": 1568, "max_pixels": 1_000_000, "max_bytes": 9_000})

    assert len(data) <= 9_000
    assert found["width"] == decoded(data).width < 300


async def test_an_animation_shows_its_first_frame(preparer: ImagePreparer) -> None:
    """The result says that there is more."""
    frames = [picture(40, 20), Image.new("RGB", (40, 20), BLUE)]
    found = await preparer.prepare(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))

    assert "first of 2 frames" in found.note
    assert is_close(decoded(found.data).convert("RGB").getpixel((3, 3)), RED)


def bomb(width: int, height: int) -> bytes:
    """A small PNG that claims to be huge."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1_000)) + chunk(b"IEND", b"")
    )


HOSTILE = {
    "bomb": (bomb(60_000, 60_000), "pixels, more than"),
    "empty": (b"", "empty"),
    "text": (b"GIF, or not", "not an image that can be read"),
    "cut off": (encoded(picture(300, 300), "JPEG")[:600], "."),
    "damaged": (encoded(Image.effect_noise((300, 300), 90))[:900] + b"\0" * 500, "."),
    "program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nquit\n", "not an image that can be read"),
    "drawing": (b"<?xml version='1.0'?><svg xmlns='http://www.w3.org/2000/svg'/>", "SVG"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_images_are_refused_with_a_reason(preparer: ImagePreparer, name: str) -> None:
    """A bomb, a fake or a damaged file is an error in one sentence, and the next image is read."""
    data, reason = HOSTILE[name]
    with pytest.raises(MediaFailed, match=reason):
        await preparer.prepare(data)

    assert (await preparer.prepare(encoded(picture()))).width == 40


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("data:image/png;base64,aGVsbG8=", b"hello"),
        ("data:image/png;base64,aGVsbG8", b"hello"),
        ("data:;base64,aGVs\n bG8=", b"hello"),
        ("DATA:image/png;charset=x;base64,aGVsbG8%3D", b"hello"),
        ("data:text/plain,he%6Clo", b"hello"),
    ],
)
def test_data_urls_are_read_as_browsers_do(url: str, expected: bytes) -> None:
    """Padding, spaces and escapes are forgiven."""
    assert from_data_url(url, 100) == expected


@pytest.mark.parametrize(
    "url", ["data:image/png;base64", "data:image/png;base64,@@@", "data:image/png;base64," + "A" * 900]
)
def test_a_bad_data_url_is_refused(url: str) -> None:
    """A damaged or too long one says so."""
    with pytest.raises(MediaFailed, match="data URL"):
        from_data_url(url, 100)


def test_a_data_url_never_grows_beyond_the_limit() -> None:
    """The limit counts decoded bytes."""
    with pytest.raises(MediaFailed, match="101 bytes"):
        from_data_url("data:,".replace(",", ";base64,") + base64.b64encode(b"x" * 101).decode(), 100)


def test_a_file_address_is_a_path() -> None:
    """`file:` addresses of this machine are accepted; those of another are not."""
    assert local_path("file:///tmp/a%20b.png") == "/tmp/a b.png"
    assert local_path("pictures/a.png") == "pictures/a.png"
    with pytest.raises(MediaFailed, match="another machine"):
        local_path("file://server/share/a.png")
