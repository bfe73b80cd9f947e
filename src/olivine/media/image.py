"""Image files to RGB, by Pillow: orientation, transparency, palettes, 16 bits, CMYK, the first frame."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from olivine.errors import MediaError, printable
from olivine.media.limits import Limits

if TYPE_CHECKING:
    from PIL import Image

# Named, because Pillow knows formats that run other programs (EPS) or are of no use here.
_PLUGINS = ("Jpeg", "Png", "WebP", "Gif", "Bmp", "Tiff", "Ppm", "Ico", "Avif", "Tga", "Qoi")
_ORIENTATION = 0x0112  # EXIF
_KNOWN = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF87a", b"GIF89a")  # what such a file begins with
_HEIC = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")


def read_image(file: IO[bytes], limits: Limits) -> Image.Image:
    """The image in a file, upright and in RGB. Its size is checked before it is decoded."""
    from PIL import Image, UnidentifiedImageError

    head = file.read(64)
    file.seek(0)
    try:
        image: Image.Image = Image.open(file, formats=_formats())
    except UnidentifiedImageError:
        raise MediaError("image", _unknown(head)) from None
    check_pixels(image.width, image.height, limits, "image")
    image.load()
    return to_rgb(upright(image))


@cache
def prepare_pillow() -> None:
    """Settings of Pillow for a process that does nothing but decode."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # ours is another
    # The rows of an image lie together, so that resize.py can read them in place.
    if choose := getattr(getattr(Image, "core", None), "set_use_block_allocator", None):
        choose(1)


@cache
def _formats() -> tuple[str, ...]:
    """The formats that are read: those of the plugins that this Pillow can use."""
    from PIL import Image

    for plugin in _PLUGINS:
        import_module(f"PIL.{plugin}ImagePlugin")
    return tuple(name.upper() for name in _PLUGINS if name.upper() in Image.OPEN)


def check_pixels(width: int, height: int, limits: Limits, kind: str) -> None:
    if width < 1 or height < 1:
        raise MediaError(kind, f"has no pixels: {width} × {height}")
    if width * height > limits.pixels:
        raise MediaError(kind, f"has {width} × {height} pixels, and the limit is {limits.pixels:,}: scale it")


def upright(image: Image.Image) -> Image.Image:
    """The image turned as its EXIF orientation says. EXIF that cannot be read says nothing."""
    from PIL.Image import Transpose

    image.load()  # Pillow turns a TIFF while it loads it, and takes the orientation away
    try:
        orientation = image.getexif().get(_ORIENTATION)
    except Exception:
        return image
    turns = {
        2: Transpose.FLIP_LEFT_RIGHT,
        3: Transpose.ROTATE_180,
        4: Transpose.FLIP_TOP_BOTTOM,
        5: Transpose.TRANSPOSE,
        6: Transpose.ROTATE_270,
        7: Transpose.TRANSVERSE,
        8: Transpose.ROTATE_90,
    }
    turn = turns.get(orientation) if isinstance(orientation, int) else None
    return image if turn is None else image.transpose(turn)


def to_rgb(image: Image.Image) -> Image.Image:
    """An image of any mode in RGB. What is transparent shows white, as the published processors have it."""
    from PIL import Image

    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        if image.format == "PPM" and image.mode == "I":  # 16 bits, which Pillow has in 32
            values = values.astype(np.uint16)
        return from_array(values, "image")
    if image.has_transparency_data:  # also in a palette
        image = image.convert("RGBA")
        if image.getchannel("A").getextrema() != (255, 255):
            white = Image.new("RGBA", image.size, (255, 255, 255, 255))
            image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def from_array(array: NDArray[Any], kind: str) -> Image.Image:
    """Pixels [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] (or channels first) as an image in RGB.

    Integers of 16 bits count by their upper 8, as Pillow reads them; floats are in [0, 1].
    """
    from PIL import Image

    array = np.asarray(array)
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if not (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4))) or array.size == 0:
        raise MediaError(kind, f"is an array of shape {array.shape}: give [height, width, 3], or 1 or 4")
    return to_rgb(Image.fromarray(np.ascontiguousarray(_eight_bits(array, kind))))


def _eight_bits(array: NDArray[Any], kind: str) -> NDArray[np.uint8]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    low, high = float(array.min()), float(array.max())
    if np.issubdtype(array.dtype, np.integer):
        is_uint16 = array.dtype.kind == "u" and array.dtype.itemsize == 2  # in either order of bytes
        if low >= 0 and high <= 255 and not is_uint16:
            return array.astype(np.uint8)
        if low >= 0 and high <= 65535:
            return (array.astype(np.uint32) >> 8).astype(np.uint8)
    elif np.issubdtype(array.dtype, np.floating) and low >= 0 and high <= 1:
        return np.rint(array * 255).astype(np.uint8)
    expected = "0 to 1" if np.issubdtype(array.dtype, np.floating) else "0 to 255 or to 65535"
    raise MediaError(kind, f"has {array.dtype} values from {low:g} to {high:g}: expected are {expected}")


def _unknown(head: bytes) -> str:
    """Why Pillow does not know a file, as the rest of a sentence."""
    if head[4:8] == b"ftyp":
        brands = [head[i : i + 4] for i in (8, *range(16, min(len(head), 48), 4))]
        if b"avif" in brands or b"avis" in brands:
            return "is in AVIF, which this Pillow cannot read: convert it to JPEG or PNG"
        if any(brand in _HEIC for brand in brands):
            return "is in HEIC, which is not read: convert it to JPEG or PNG"
        return "is a video or a sound: give it as such"
    if head.lstrip()[:5].lower() in (b"<?xml", b"<svg "):
        return "is in SVG, which is not read: render it to PNG"
    if head[:4] == b"%PDF":
        return "is a PDF: render its pages to PNG"
    if not head:
        return "is empty"
    if head.startswith(_KNOWN):
        return "is broken"
    return f"is in no known format (it begins with {printable(ascii(head[:8])[2:-1])}): give JPEG or PNG"
