"""Images as they come: every odd kind is converted as a viewer would show it, or refused by name."""

import io
import tracemalloc
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_images

from rac_jax.data import decode
from rac_jax.data.decode import BadImage

PHOTO = Image.fromarray(load_sample_images().images[0])  # 640 × 427


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def corners() -> Image.Image:
    """40 × 24: red, green, blue, white quarters, so that a turn shows."""
    pixels = np.zeros((24, 40, 3), np.uint8)
    pixels[:12, :20], pixels[:12, 20:] = (250, 0, 0), (0, 250, 0)
    pixels[12:, :20], pixels[12:, 20:] = (0, 0, 250), (250, 250, 250)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("options", [{"quality": 90}, {"progressive": True}, {"subsampling": 0}, {"optimize": True}])
def test_jpeg_has_pillows_pixels(options: dict[str, Any]):
    data = encoded(PHOTO, "JPEG", **options)
    np.testing.assert_array_equal(decode.decode(data, "photo"), np.asarray(Image.open(io.BytesIO(data))))


def test_grey_and_cmyk_jpeg():
    grey = encoded(PHOTO.convert("L"), "JPEG")
    image = decode.decode(grey, "grey")
    assert image.shape == (427, 640, 3)
    np.testing.assert_array_equal(image[..., 0], np.asarray(Image.open(io.BytesIO(grey))))
    np.testing.assert_array_equal(image[..., 0], image[..., 2])
    cmyk = decode.decode(encoded(corners().convert("CMYK"), "JPEG", quality=95), "cmyk").astype(int)
    assert np.abs(cmyk[2, 2] - (250, 0, 0)).max() < 12
    assert np.abs(cmyk[-2, -2] - (250, 250, 250)).max() < 12


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_camera_orientation(kind: str, orientation: int):
    """As Pillow's exif_transpose, which covers all eight."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(corners(), kind, exif=exif)
    with Image.open(io.BytesIO(data)) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    image = decode.decode(data, "turned")
    np.testing.assert_array_equal(image, expected)
    assert image.shape == ((24, 40, 3) if orientation <= 4 else (40, 24, 3))


@pytest.mark.parametrize(
    "before",
    [
        b"\xff\xed\x17\x70" + bytes(5998),  # APP13, as of Photoshop
        2 * (b"\xff\xe2\xff\xff" + 65_533 * b"\xff"),  # APP2, as large profiles
        b"\xff\xe2\x17\x70" + 1499 * b"\xff\xda\x00\x08" + b"\xff\xda",  # what looks like a scan is inside
        100 * b"\xff",
    ],
    ids=["6 kB", "128 kB", "thumbnail", "padding"],
)
def test_camera_orientation_behind_other_segments(before: bytes):
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(corners(), "JPEG", exif=exif)
    start = data.index(b"\xff\xe1")
    data = data[:start] + before + data[start:]
    with Image.open(io.BytesIO(data)) as picture:
        expected = np.asarray(ImageOps.exif_transpose(picture))
    assert expected.shape == (40, 24, 3)
    np.testing.assert_array_equal(decode.decode(data, "turned"), expected)


def test_sixteen_bits_are_scaled_not_cut():
    ramp = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
    image = decode.decode(encoded(Image.fromarray(ramp), "PNG"), "16 bits")
    np.testing.assert_array_equal(image[..., 1].ravel(), np.arange(256))


@pytest.mark.parametrize(
    ("values", "dtype", "expected"),
    [
        ([0, 2048, 4095], np.uint16, [0, 128, 255]),  # 12 bits in 16
        ([0, 100, 255], np.uint16, [0, 100, 255]),  # 8 bits in 16
        ([0, 511, 1023], np.int32, [0, 127, 255]),
        ([0, 100, 255], np.int32, [0, 100, 255]),
        ([0, 32768, 65535], np.int32, [0, 128, 255]),
        ([0.0, 0.5, 1.0], np.float32, [0, 128, 255]),
        ([-0.02, 0.5, 1.04], np.float32, [0, 128, 255]),  # overshoot
        ([0.0, 127.6, 255.0], np.float32, [0, 128, 255]),
        ([0.0, 0.0, 0.0], np.float32, [0, 0, 0]),
    ],
)
def test_deep_grey_values_are_scaled_by_their_range(values: list[float], dtype: Any, expected: list[int]):
    image = decode.decode(encoded(Image.fromarray(np.array([values], dtype)), "TIFF"), "deep")
    assert image.tolist() == [[[value] * 3 for value in expected]]


@pytest.mark.parametrize(
    ("values", "dtype", "reason"),
    [
        ([0, 70000], np.int32, "pixels from 0 to 70000, where 0 to 1 or 0 to at most 65535 can be read"),
        ([-1000, 2000], np.int32, "pixels from -1000 to 2000"),
        ([-1.0, 1.0], np.float32, "pixels from -1 to 1"),
        ([0.0, np.nan], np.float32, "pixels that are NaN or infinite"),
        ([0.0, np.inf], np.float32, "pixels that are NaN or infinite"),
    ],
)
def test_deep_grey_values_without_a_known_range_are_refused(values: list[float], dtype: Any, reason: str):
    with pytest.raises(BadImage, match=f"deep: not a usable image .{reason}"):
        decode.decode(encoded(Image.fromarray(np.array([values], dtype)), "TIFF"), "deep")


def test_avif():
    image = decode.decode(encoded(corners(), "AVIF", quality=90), "avif").astype(int)
    assert image.shape == (24, 40, 3)
    assert np.abs(image[4, 4] - (250, 0, 0)).max() < 20


def test_transparent_is_on_white_and_palette_is_resolved():
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    clear.putpixel((0, 0), (0, 0, 200, 255))
    image = decode.decode(encoded(clear, "PNG"), "clear")
    assert image[0, 0].tolist() == [0, 0, 200]
    assert image[1, 1].tolist() == [255, 255, 255]
    palette = encoded(corners().quantize(4), "GIF")
    assert np.abs(decode.decode(palette, "palette")[1, 1].astype(int) - (250, 0, 0)).max() < 8
    two = decode.decode(encoded(Image.new("1", (3, 3), 1), "PNG"), "two colours")
    assert two.tolist() == [[[255] * 3] * 3] * 3
    grey_alpha = decode.decode(encoded(Image.new("LA", (2, 2), (9, 0)), "PNG"), "grey and alpha")
    assert grey_alpha.tolist() == [[[255] * 3] * 2] * 2


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_large_images_are_converted_in_parts_with_the_same_pixels(mode: str):
    pixels = np.random.default_rng(0).integers(0, 256, (1100, 2050, 4), np.uint8)
    picture = (
        Image.fromarray(pixels).convert("RGB").quantize(64) if mode == "P" else Image.fromarray(pixels).convert(mode)
    )
    layer = picture.convert("RGBA")
    expected = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    np.testing.assert_array_equal(decode.upright_pixels(picture), np.asarray(expected))


@pytest.mark.parametrize("kind", ["RGBA", "grey"])
def test_little_memory_is_needed_beside_the_result(kind: str):
    picture = Image.new("RGBA", (4000, 4000)) if kind == "RGBA" else None
    grey = np.full((4000, 4000), 40_000, np.uint16)
    tracemalloc.start()
    try:
        found = decode.upright_pixels(picture) if picture else decode.eight_bits(grey)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < found.nbytes + 45e6  # of Pillow's own memory nothing is traced
    assert found[-1, -1].max() == (255 if picture else 156)


def test_one_pixel():
    image = decode.decode(encoded(Image.new("RGB", (1, 1), (7, 8, 9)), "PNG"), "one")
    assert image.tolist() == [[[7, 8, 9]]]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an image",
        encoded(PHOTO, "JPEG")[:5000],
        encoded(PHOTO, "PNG")[:50_000],
        encoded(PHOTO, "JPEG")[:3],
        b"<html>404 not found</html>",
    ],
    ids=["empty", "text", "cut JPEG", "cut PNG", "start of JPEG", "error page"],
)
def test_what_is_no_image_is_refused_by_name(data: bytes):
    with pytest.raises(BadImage, match=r"^a/b\.jpg: not a usable image \(.+"):
        decode.decode(data, "a/b.jpg")


def test_corrupt_jpeg_is_decoded_where_pillow_decodes_it():
    """Stray bytes before a marker: libjpeg warns, Pillow does not mind."""
    data = bytearray(encoded(PHOTO, "JPEG"))
    data[-2:-2] = b"\x00" * 7
    assert decode.decode(bytes(data), "stray").shape == (427, 640, 3)


def test_a_hundred_megapixels_are_decoded_small():
    data = encoded(Image.new("RGB", (12_500, 8_000), (10, 200, 30)), "JPEG")
    image = decode.decode(data, "large", enough=448)
    assert image.shape == (1000, 1563, 3)  # an eighth
    assert np.abs(image[500, 500].astype(int) - (10, 200, 30)).max() <= 3


def test_a_decompression_bomb_is_refused():
    for kind in ("PNG", "JPEG"):
        with pytest.raises(BadImage, match=r"bomb: .*40 × 24 pixels; at most 959 are decoded"):
            decode.decode(encoded(corners(), kind), "bomb", most_pixels=40 * 24 - 1)
    assert decode.decode(encoded(corners(), "PNG"), "no bomb", most_pixels=40 * 24).shape == (24, 40, 3)


@pytest.mark.parametrize(("enough", "part"), [(53, 8), (54, 4), (107, 2), (213, 2), (214, 1), (0, 1)])
def test_reduced_decoding_keeps_enough(enough: int, part: int):
    data = encoded(PHOTO, "JPEG", quality=90)
    image = decode.decode(data, "photo", enough=enough)
    assert image.shape == (-(-427 // part), -(-640 // part), 3)


@pytest.mark.parametrize("number", [0, 1])
def test_reduced_decoding_changes_little(number: int):
    """Within 1.5 grey levels on average, 8 in 99 of 100 pixels, after resizing to half of `enough`."""
    data = encoded(Image.fromarray(load_sample_images().images[number]), "JPEG", quality=90)
    resized = [
        np.asarray(
            Image.fromarray(decode.decode(data, "photo", enough=enough)).resize((64, 64), Image.Resampling.BICUBIC)
        )
        for enough in (0, 128)
    ]
    difference = np.abs(resized[0].astype(int) - resized[1])
    assert 0 < difference.mean() < 1.5
    assert np.quantile(difference, 0.99) <= 8
