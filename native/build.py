"""Compiles the CPU backend's library: one C++ compiler, no build system. `python native/build.py
[--sanitize]`.

Each instruction set is one source file with its own flags; everything else is compiled for the architecture's
baseline CPU, so the library runs on all of them and chooses at run time (native/src/isa.cpp). CXX names
another compiler, for another architecture or system too: CXX=aarch64-linux-gnu-g++. docs/packaging.md says
which were tried.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path

SOURCE = Path(__file__).parent / "src"
PACKAGE = Path(__file__).parents[1] / "src" / "olivine" / "backends" / "cpu"
GRIDS = PACKAGE.parent / "grids.inc"  # of the IQ types, which Python reads too

COMMON = [
    "-std=c++20",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    "-Wno-unknown-warning-option",  # Clang's word for GCC's own -Wno-…
    "-fno-math-errno",
]
# What each system needs. macOS 11 is the first whose C++ library has std::atomic::wait.
COMPILE = {"linux": ["-fPIC", "-pthread"], "darwin": ["-fPIC", "-mmacosx-version-min=11.0"], "windows": []}
LINK = {
    "linux": ["-shared", "-pthread"],
    "darwin": ["-dynamiclib", "-mmacosx-version-min=11.0", "-Wl,-install_name,@rpath/libolivine.dylib"],
    "windows": ["-shared", "-static-libstdc++", "-static-libgcc"],  # Windows has no C++ library
}
LIBRARY = {"linux": "libolivine.so", "darwin": "libolivine.dylib", "windows": "olivine.dll"}
AVX2 = ["-mavx2", "-mfma", "-mf16c", "-Wno-maybe-uninitialized"]
AVX512 = ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
AVX512 += ["-mbmi2", "-mprefer-vector-width=512"]
# gcc 12 warns about undefined vectors in its own intrinsics.
AVX512 += ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
# Sampling is defined with a rounding after every operation, and converted files must not depend on the
# machine. Floating-point exceptions are not used, and without them clamps become vector instructions.
EXACT = ["-ffp-contract=off", "-fno-trapping-math"]
STRICT = {f"{stem}{isa}.cpp": EXACT for stem in ("sample", "quantize") for isa in ("", "_avx2", "_avx512")}
# The files of each instruction set, by architecture. aarch64 has NEON in its baseline.
# Not armv8.6-a for the last: Neoverse V1 has i8mm and bf16, but not all the rest of it.
ARM = "-march=armv8.2-a+fp16+dotprod"
ISA = {
    "x86_64": {
        "avx2.cpp": AVX2,
        "avxvnni.cpp": [*AVX2, "-mavxvnni"],
        "avx512.cpp": AVX512,
        "sample_avx2.cpp": ["-mavx2"],
        "sample_avx512.cpp": AVX512,
        "quantize_avx2.cpp": ["-mavx2", "-mf16c"],
        "quantize_avx512.cpp": AVX512,
        "amx.cpp": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
    },
    "aarch64": {
        "neon.cpp": [],
        "dotprod.cpp": [ARM],
        "i8mm.cpp": [f"{ARM}+i8mm+bf16"],
    },
}


# The files that take longest to compile: they are compiled first, to keep all cores busy to the end.
SLOW = ("amx", "avx512", "avx2", "avxvnni", "i8mm", "dotprod", "neon", "plain")


NO_COMPILER = """olivine: the native library needs a C++20 compiler, and there is no {name!r} here.
  Debian, Ubuntu   apt-get install g++
  Fedora, RHEL     dnf install gcc-c++
  macOS            xcode-select --install
  Windows          winget install LLVM.LLVM, in a developer prompt of Visual Studio's build tools
or name one: CXX=/path/to/compiler. A built wheel needs none."""
OLD_COMPILER = "GCC 12 and Clang 22 compile it; CXX names another compiler."


def compiler_command() -> list[str]:
    return shlex.split(os.environ.get("CXX") or ("clang++" if platform.system() == "Windows" else "c++"))


def target_of_compiler(compiler: list[str]) -> tuple[str, str]:
    """The architecture and the system that the compiler compiles for: keys of ISA and LINK.

    Another architecture has the plain kernels; another system is taken to be like Linux.
    """
    try:
        run = subprocess.run([*compiler, "-dumpmachine"], capture_output=True, text=True, check=False)
    except OSError:
        raise SystemExit(NO_COMPILER.format(name=compiler[0])) from None
    target = run.stdout.strip().lower() or f"{platform.machine()}-{platform.system()}".lower()
    machine = target.split("-")[0]
    system = "linux"
    if "mingw" in target or "windows" in target:
        system = "windows"
    elif any(name in target for name in ("darwin", "apple", "macos")):
        system = "darwin"
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine), system


def library_name() -> str:
    return LIBRARY[target_of_compiler(compiler_command())[1]]


def build(
    output: Path,
    *,
    sanitize: bool = False,
    verbose: bool = False,
    tell: Callable[[str], object] = lambda line: None,
) -> Path:
    """Compiles the files that have changed and links the library; calls `tell` with progress messages."""
    compiler = compiler_command()
    machine, system = target_of_compiler(compiler)
    if system == "windows" and "clang" not in _version(compiler):
        raise SystemExit("olivine: GCC does not align AVX vectors on the stack of Windows: CXX=clang++")
    isa = ISA.get(machine, {})
    foreign = {name for files in ISA.values() for name in files} - set(isa)
    mode = ["-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
    flags = [*COMMON, *COMPILE[system], *(mode if sanitize else ["-O3", "-DNDEBUG"])]
    objects = output.parent / (".objects-sanitize" if sanitize else ".objects")
    objects.mkdir(parents=True, exist_ok=True)
    newest_header = max(path.stat().st_mtime for path in [*SOURCE.glob("*.h"), GRIDS, Path(__file__)])

    def target_of(source: Path) -> Path:
        return objects / f"{source.stem}.o"

    def changed(source: Path) -> bool:
        target = target_of(source)
        return not target.exists() or target.stat().st_mtime <= max(source.stat().st_mtime, newest_header)

    def compile_one(source: Path) -> tuple[Path, float]:
        started = time.perf_counter()
        command = [
            *compiler,
            *flags,
            *isa.get(source.name, []),
            *STRICT.get(source.name, []),
            "-c",
            str(source),
            "-o",
            str(target_of(source)),
        ]
        if verbose:
            print(shlex.join(command))
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            told = f"{shlex.join(command)}\n{run.stderr}\n{OLD_COMPILER}"
            raise SystemExit(f"olivine: the native library does not compile:\n{told}")
        if run.stderr and verbose:
            print(run.stderr, file=sys.stderr)
        return source, time.perf_counter() - started

    sources = [path for path in sorted(SOURCE.glob("*.cpp")) if path.name not in foreign]
    for path in set(objects.glob("*.o")) - {target_of(source) for source in sources}:
        path.unlink()  # of a source file that is no longer there
    todo = [path for path in sources if changed(path)]
    todo.sort(key=lambda path: path.stem not in SLOW)
    if todo:
        files = "1 C++ file" if len(todo) == 1 else f"{len(todo)} C++ files: some minutes, once"
        tell(f"compiling the native library, {files}")
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        running = [pool.submit(compile_one, path) for path in todo]
        try:
            for done, future in enumerate(as_completed(running), 1):
                source, seconds = future.result()
                tell(f"  {done:>2} of {len(todo)}  {source.name}, {seconds:.0f} s")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    # Under another name first: processes that have the library mapped keep the old one.
    linked = output.with_name(f".{os.getpid()}-{output.name}")
    link = [*compiler, *(mode if sanitize else []), *LINK[system]]
    link += [*(str(target_of(path)) for path in sources), "-o", str(linked)]
    run = subprocess.run(link, capture_output=True, text=True)
    if run.returncode:
        linked.unlink(missing_ok=True)
        raise SystemExit(f"olivine: the native library does not link:\n{shlex.join(link)}\n{run.stderr}")
    linked.replace(output)
    return output


def _version(compiler: list[str]) -> str:
    return subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    name = "libolivine-sanitize.so" if arguments.sanitize else library_name()
    output = arguments.output or PACKAGE / name
    build(output, sanitize=arguments.sanitize, verbose=arguments.verbose, tell=partial(print, flush=True))


if __name__ == "__main__":
    main()
