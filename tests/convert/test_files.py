"""A conversion leaves a whole file or none, whatever happens to it, and holds little in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from olivine.convert import convert, stream
from olivine.convert.files import refuse_full_disk, temporary_files
from olivine.convert.gguf_writer import TensorInfo, header, padding
from olivine.dtypes import F32
from olivine.errors import ModelError, RequestError
from olivine.formats import open_checkpoint
from oracles import folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write("qwen3", tmp_path_factory.mktemp("hf"))


def large_file(path: Path, layers: int = 24, rows: int = 256) -> Path:
    """A GGUF file with a number of tensors."""
    infos = [TensorInfo(f"blk.{i}.ffn_up.weight", F32, (rows, 1024)) for i in range(layers)]
    values = np.random.default_rng(0).standard_normal((rows, 1024), np.float32)
    with path.open("wb") as file:
        file.write(header({"general.architecture": "strange", "strange.block_count": layers}, infos))
        for info in infos:
            file.write(values)
            file.write(padding(info.nbytes))
    return path


# The command, which rests after each tensor: a signal finds it at work however busy the machine is. What it
# does on a hang-up is said, because under nohup the tests, and what they start, ignore it.
SLOWLY = """
import signal, sys, time
signal.signal(signal.SIGHUP, getattr(signal, sys.argv.pop(1)))
import olivine.convert as package
from olivine.cli.main import main
convert = package.convert
package.convert = lambda *a, **k: convert(*a, **k | {"progress": lambda *done: time.sleep(1)})
sys.argv[0] = "olivine"
main()
"""


def start(source: Path, made: Path, hang_up: str = "SIG_DFL") -> subprocess.Popen[bytes]:
    """A conversion in a process of its own, that has begun to write."""
    command = [
        sys.executable,
        "-c",
        SLOWLY,
        hang_up,
        "convert",
        str(source),
        str(made),
        "--type",
        "Q4_K_M",
        "-t",
        "1",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    while process.poll() is None:  # without a limit of its own: a slow machine needs minutes to start
        if any(part.stat().st_size > 10_000 for part in made.parent.glob("made*.part")):
            return process
        time.sleep(0.01)
    raise AssertionError(f"it wrote nothing: {process.communicate()[1]!r}")


@pytest.mark.parametrize(
    ("number", "left"),
    [(signal.SIGKILL, 1), (signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGHUP, 0)],
    ids=["kill", "int", "term", "hup"],
)
def test_a_conversion_that_is_killed_leaves_no_half_file(
    number: signal.Signals, left: int, tmp_path: Path
) -> None:
    source, made = large_file(tmp_path / "source.gguf"), tmp_path / "made.gguf"
    process = start(source, made)
    process.send_signal(number)
    error = process.communicate(timeout=240)[1]
    assert process.returncode != 0
    assert b"Traceback" not in error
    assert not made.exists()
    assert len(list(tmp_path.glob("*.part"))) == left


def test_a_conversion_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    source, made = large_file(tmp_path / "source.gguf", layers=2), tmp_path / "made.gguf"
    process = start(source, made, hang_up="SIG_IGN")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=240)
    assert process.returncode == 0
    assert sorted(tmp_path.iterdir()) == [made, source]


def test_a_file_that_was_there_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    source, made = large_file(tmp_path / "source.gguf", layers=2), tmp_path / "made.gguf"
    made.write_bytes(b"old")

    def fail(done: int, total: int, name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, made, "Q8_0", force=True, progress=fail)
    assert made.read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == [made, source]


def test_a_bad_value_is_told_with_its_tensor(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "f32.gguf", "F32")
    tensor = open_checkpoint(tmp_path / "f32.gguf").tensors["blk.1.ffn_up.weight"]
    data = bytearray((tmp_path / "f32.gguf").read_bytes())
    at = bytes(data).find(tensor.data.tobytes())
    data[at : at + 4] = np.float32(np.nan).tobytes()
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight cannot become Q4_K: .* not a number"):
        convert(tmp_path / "bad.gguf", tmp_path / "made.gguf", "Q4_K_M")
    assert not list(tmp_path.glob("made*"))


def test_several_files_come_together_or_not_at_all(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    with pytest.raises(ZeroDivisionError), temporary_files(first, second) as (one, two):
        one.write_text("1")
        two.write_text("2")
        _ = 1 / 0
    assert not list(tmp_path.iterdir())
    with temporary_files(first, second) as (one, two):
        one.write_text("1")
        two.write_text("2")
        assert not first.exists()
    assert (first.read_text(), second.read_text()) == ("1", "2")
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"has .* left"):
        refuse_full_disk(tmp_path / "made.gguf", 1 << 60)


def test_a_disk_that_fills_up_meanwhile(tmp_path: Path) -> None:
    """Here it is a limit on files' sizes that stops it half-way."""
    source = large_file(tmp_path / "source.gguf", layers=4)
    script = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "from olivine.cli.main import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "convert", source, tmp_path / "made.gguf", "--type", "F16"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr == f"Error: {tmp_path / 'made.gguf'} cannot be written: File too large\n"
    assert [*tmp_path.iterdir()] == [source]


def test_devices_and_pipes_are_not_replaced(tmp_path: Path) -> None:
    source, pipe = large_file(tmp_path / "source.gguf", layers=1), tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(RequestError, match="is a device or a pipe"):
        convert(source, pipe, "F16", force=True)
    assert pipe.is_fifo()


def test_only_a_few_pieces_are_in_memory() -> None:
    """However slowly results are taken, no more than two jobs a thread run ahead."""
    begun = []

    def run(job: int) -> np.ndarray:
        begun.append(job)
        return np.array([job], np.uint8)

    for job, data in stream.in_order(iter(range(50)), run, threads=2):
        time.sleep(0.001)
        assert data[0] == job
        assert len(begun) <= job + 2 * 2 + 2
    assert sorted(begun) == list(range(50))


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    source = large_file(tmp_path / "source.gguf", layers=40)  # 336 MB
    script = (
        "import re, sys\n"
        "from olivine.convert import convert\n"
        "convert(sys.argv[1], sys.argv[2], 'Q8_0', threads=2)\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, source, tmp_path / "made.gguf"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) * 1024 < 200e6
