"""The object files of the CPU backend: an instruction set's file has no instruction of a newer one.

Of the library's own build, and of those that `make test-arm` and `make test-x86` make on another machine.
"""

from __future__ import annotations

import functools
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from olivine.backends.cpu import native

ROOT = Path(__file__).parents[2]
BUILDS = {
    "own": Path(native.__file__).parent / ".objects",
    **{machine: ROOT / "build" / machine / ".objects" for machine in ("aarch64", "x86_64")},
}

# Instructions that came with each set, in objdump's spelling.
X86 = {
    "sse4": r"\t(pshufb|palignr|pmaddubsw|pabs[bwd]|ph(add|sub)[wd]|pmulld|p(ins|ext)r[bdq]|round[ps][sd]"
    r"|p?blend\w+|p(min|max)(s[bd]|u[wd])|pmov[sz]x\w+|packusdw|ptest|dpp[sd]|extractps|insertps|pcmp(eq|gt)q"
    r"|popcnt|crc32)",
    "avx": r"\tv[a-z0-9]+ |%ymm",
    "fma": r"\tvfn?m(add|sub)",
    "avxvnni": r"\t\{vex\} vpdp",
    "avx512": r"%zmm|%[xyz]mm(1[6-9]|2\d|3[01])|%k[0-7]",
    "bf16": r"\tvcvtne2?ps2bf16|\tvdpbf16ps",
    "amx": r"%tmm|\ttile|\tldtilecfg|\ttdp",
}
ARM = {
    "atomics": r"\t(cas|ldadd|ldclr|ldset|swp)[abhlp]*\t",
    "fp16": r"\t(f[a-z]+|[su]cvtf)\tv\d+\.[48]h, v\d+\.[48]h|\tf(add|sub|mul|div|madd)\th",
    "dotprod": r"\t[su]dot\t",
    "i8mm": r"\t(us|su)dot\t|\t(s|u|us)mmla\t",
    "bf16": r"\tbf(cvt[a-z0-9]*|dot|mlal[bt]|mmla)\t",
    "sve": r"\bz\d+\.[bhsdq]\b|\bp\d+/[mz]\b|\twhilel|\tptrue",
}
# What a file may have beyond the architecture's baseline.
ALLOWED = {
    "avx2": {"sse4", "avx", "fma"},
    "avxvnni": {"sse4", "avx", "fma", "avxvnni"},
    "avx512": {"sse4", "avx", "fma", "avx512"},
    "amx": {"sse4", "avx", "fma", "avx512", "bf16", "amx"},
    "sample_avx2": {"sse4", "avx"},
    "quantize_avx2": {"sse4", "avx"},
    "sample_avx512": {"sse4", "avx", "avx512"},
    "quantize_avx512": {"sse4", "avx", "avx512"},
    "resize": {"sse4", "avx"},  # two functions, which are called where there is AVX2
    "neon": set(),
    "dotprod": {"atomics", "fp16", "dotprod"},
    "i8mm": {"atomics", "fp16", "dotprod", "i8mm", "bf16"},
}


def architecture(path: Path) -> str:
    """Of an object file, by its ELF header."""
    return {62: "x86_64", 183: "aarch64"}.get(int.from_bytes(path.read_bytes()[18:20], "little"), "other")


def disassembler(machine: str) -> str:
    names = [f"{machine.replace('_', '-')}-linux-gnu-objdump", "objdump"]
    for name in filter(shutil.which, names):
        formats = subprocess.run([name, "-i"], capture_output=True, text=True, check=True).stdout
        if re.search(rf"elf64-(little)?{machine.replace('_', '-')}\b", formats):
            return name
    pytest.skip(f"no objdump for {machine} is installed (binutils)")


@functools.cache
def disassembled(objdump: str, path: Path) -> str:
    command = [objdump, "-d", "--no-show-raw-insn", path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def foreign(text: str, machine: str, allowed: set[str]) -> Iterator[str]:
    """The first instruction of each set that is not allowed."""
    for name, pattern in {"x86_64": X86, "aarch64": ARM}[machine].items():
        found = None if name in allowed else re.search(f"^.*({pattern}).*$", text, re.M)
        if found:
            yield f"{name}: {found[0].strip()}"


@pytest.fixture(params=BUILDS)
def objects(request: pytest.FixtureRequest) -> list[Path]:
    found = sorted(BUILDS[request.param].glob("*.o"))
    if not found or architecture(found[0]) == "other":
        pytest.skip(f"no object files in {BUILDS[request.param]}")
    return found


def test_a_file_has_no_instruction_of_a_newer_set(objects: list[Path]) -> None:
    machine = architecture(objects[0])
    objdump = disassembler(machine)
    for path in objects:
        found = list(foreign(disassembled(objdump, path), machine, ALLOWED.get(path.stem, set())))
        assert not found, path.name


def test_newer_instructions_are_recognized(objects: list[Path]) -> None:
    """The check itself: what a file is allowed to have is there, and is found if it is not allowed."""
    machine = architecture(objects[0])
    objdump = disassembler(machine)
    named = {
        "x86_64": {"avx2": "avx", "avxvnni": "avxvnni", "avx512": "avx512", "amx": "amx"},
        "aarch64": {"dotprod": "dotprod", "i8mm": "bf16"},
    }
    for path in objects:
        newest = named[machine].get(path.stem)
        if newest:
            found = list(foreign(disassembled(objdump, path), machine, ALLOWED[path.stem] - {newest}))
            assert [each.split(":")[0] for each in found] == [newest], path.name


def test_kernels_of_an_instruction_set_export_nothing_that_the_linker_could_merge(
    objects: list[Path],
) -> None:
    """A weak function compiled for AVX-512 and merged with the plain one would crash on an older CPU."""
    tables = runpy.run_path(str(ROOT / "native" / "build.py"))["ISA"]
    stems = {Path(name).stem for name in tables[architecture(objects[0])]}
    if shutil.which("nm") is None:
        pytest.skip("no nm is installed (binutils)")
    for path in objects:
        if path.stem in stems:
            symbols = subprocess.run(["nm", "-C", path], capture_output=True, text=True, check=True).stdout
            # DW.ref is an address for the tables of exceptions, the same whichever copy is taken.
            weak = [line for line in symbols.splitlines() if re.search(" [WVu] (?!DW.ref)", line)]
            assert not weak, (path.name, weak[:5])
