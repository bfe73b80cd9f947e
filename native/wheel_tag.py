"""The platform tag of a wheel with the native library: the oldest system that the library runs on.

On Linux it follows from the versions of the symbols that the library needs of glibc and libstdc++ (PEP 600).
"""

from __future__ import annotations

import platform
import re
import struct
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

# Systems with glibc 2.N, and what their libstdc++ has at least: GLIBCXX_3.4.N, CXXABI_1.3.N; from auditwheel.
POLICIES = [(17, 19, 7), (24, 22, 10), (27, 24, 11), (28, 24, 11), (31, 28, 12), (34, 29, 13), (35, 30, 13)]
POLICIES += [(39, 33, 15)]
SYSTEM_LIBRARIES = re.compile(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|atomic)\.so\.\d+|ld-linux.*")
MACHINES = {62: "x86_64", 183: "aarch64"}  # of an ELF header
_ELF64 = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_DT_NEEDED, _DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF


def platform_tag(library: Path) -> str:
    """Such as `manylinux_2_27_x86_64`; without `many` where only systems like this one have what it needs."""
    local = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if platform.system() == "Darwin":
        # Python may be built for two architectures; the library is not.
        return f"macosx_11_0_{platform.machine()}"  # as in build.py
    elf = library.read_bytes()
    if not local.startswith("linux_") or not elf.startswith(_ELF64):
        return local
    needed = requirements(elf)
    machine = MACHINES.get(struct.unpack_from("<H", elf, 18)[0], local.removeprefix("linux_"))
    minor = oldest_glibc(version for _, versions in needed for version in versions)
    if minor is None or not all(SYSTEM_LIBRARIES.fullmatch(name) for name, _ in needed):
        return f"linux_{machine}"
    return f"manylinux_2_{minor}_{machine}"


def oldest_glibc(versions: Iterable[str]) -> int | None:
    """The minor version of the oldest glibc 2 whose systems have all of these; None if none is known to.

    A library that asks glibc for nothing is linked with another C library, such as musl.
    """
    highest = {"GLIBC_2": 0, "GLIBCXX_3.4": 0, "CXXABI_1.3": 0}
    for version in versions:
        family = next(
            (name for name in highest if re.fullmatch(rf"{re.escape(name)}(\.\d+)*", version)), None
        )
        if family:
            minor = int(version.removeprefix(family).strip(".").partition(".")[0] or 0)
            highest[family] = max(highest[family], minor)
        elif version.startswith("GLIBC"):  # GLIBC_PRIVATE, GLIBC_ABI_DT_RELR
            return None
    glibc, glibcxx, cxxabi = highest.values()
    for minor, has_glibcxx, has_cxxabi in POLICIES:
        if 0 < glibc <= minor and glibcxx <= has_glibcxx and cxxabi <= has_cxxabi:
            return minor
    return None


def requirements(elf: bytes) -> list[tuple[str, list[str]]]:
    """The libraries that a 64-bit ELF library needs, each with the symbol versions that it asks of it."""
    if not elf.startswith(_ELF64):
        raise ValueError("no 64-bit little-endian ELF file")
    headers = [struct.unpack_from("<IIQQQQQQ", elf, at) for at in _entries(elf)]
    loaded = [(address, offset, size) for kind, _, offset, address, _, size, _, _ in headers if kind == 1]
    dynamic_at, dynamic_size = next(
        (offset, size) for kind, _, offset, _, _, size, _, _ in headers if kind == 2
    )
    dynamic = list(struct.iter_unpack("<QQ", elf[dynamic_at : dynamic_at + dynamic_size]))
    values = dict(dynamic)

    def file_offset(address: int) -> int:
        return next(
            address - start + offset for start, offset, size in loaded if start <= address < start + size
        )

    strings = file_offset(values[_DT_STRTAB])

    def text(offset: int) -> str:
        start = strings + offset
        return elf[start : elf.index(b"\0", start)].decode()

    found: dict[str, list[str]] = {text(value): [] for tag, value in dynamic if tag == _DT_NEEDED}
    at = file_offset(values[_DT_VERNEED]) if _DT_VERNEED in values else 0
    for _ in range(values.get(_DT_VERNEEDNUM, 0)):
        _, count, name, first, following = struct.unpack_from("<HHIII", elf, at)
        version_at = at + first
        for _ in range(count):
            _, _, _, version, after = struct.unpack_from("<IHHII", elf, version_at)
            found.setdefault(text(name), []).append(text(version))
            version_at += after
        at += following
    return list(found.items())


def _entries(elf: bytes) -> Iterator[int]:
    """Where the program headers are."""
    start, size, count = (*struct.unpack_from("<Q", elf, 32), *struct.unpack_from("<HH", elf, 54))
    return (start + i * size for i in range(count))
