"""The CPU, its memory, and what of them is used."""

from __future__ import annotations

import os

from olivine import machine
from olivine.backends import cpu
from olivine.backends.cpu import isas
from olivine.backends.cpu.threads import cpu_quota
from olivine.doctor.section import Problem, Section, size
from olivine.engine.budget import spare_bytes, whole_bytes
from olivine.errors import OlivineError

LITTLE = 2 << 30  # bytes: less is too little for most models
SLOW_ISA = "plain"


def processor() -> Section:
    """The CPU: the instruction set in use, why not a better one, and the threads."""
    section = Section("cpu")
    logical = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, quota = cpu.default_threads(), cpu_quota()
    section.facts = {
        "name": machine.cpu_name(),
        "hardware_threads": logical,
        "quota": quota,
        "threads": threads,
    }
    section.tell("CPU", machine.cpu_name())
    limit = "" if quota is None else f", limited to {quota:g} by the control group"
    section.tell("threads", f"{threads} used; {logical} hardware threads{limit}")
    try:
        _instruction_sets(section)
    except OlivineError as error:
        section.facts["library"] = str(error)
        section.tell("library", f"cannot be loaded: {error}")
        section.problems.append(
            Problem(
                f"the CPU backend does not run: {error}",
                "install a wheel of Olivine, or build it with a C++ compiler at hand",
                failure=True,
            )
        )
    return section


def _instruction_sets(section: Section) -> None:
    chosen = cpu.isa()
    wanted = os.environ.get("OLIVINE_ISA")
    table = {name: None if isas.usable(name) else isas.obstacle(name) for name in isas.isas()}
    section.facts |= {"isa": chosen, "isa_wanted": wanted, "isas": table}
    better = [*table][: [*table].index(chosen)]
    why = [f"{name}: {table[name] or f'OLIVINE_ISA asks for {chosen}'}" for name in better]
    section.tell("instructions", "\n".join([f"{chosen} in use", *(f"not {each}" for each in why)]))
    if wanted and any(table[name] is None for name in better):
        section.problems.append(
            Problem(f"OLIVINE_ISA={wanted} makes the CPU slower than it could be", "unset OLIVINE_ISA")
        )
    elif chosen == SLOW_ISA:
        told = cpu.slow_kernels() or "the kernels are plain C++"
        section.problems.append(Problem(told, "use another machine, or small models"))


def memory(*, again: bool = False) -> Section:
    """The memory and its bandwidth."""
    section = Section("memory")
    whole, spare = whole_bytes(), spare_bytes()
    section.facts = {"bytes": whole if whole < 1 << 62 else None, "available_bytes": spare}
    section.facts["busy"] = machine.is_busy()
    known = f"{size(spare)} of {size(whole)} available" if whole < 1 << 62 else "not known"
    section.tell("memory", known)
    if spare < LITTLE and whole < 1 << 62:
        section.problems.append(
            Problem(
                f"only {size(spare)} of memory are available",
                "end other programs, or choose a small model, a shorter --context or --kv-type q8_0",
            )
        )
    try:
        found = machine.bandwidth(again=again)
    except OlivineError:
        return section  # the library, which the section before has named
    section.facts["bandwidth"] = found
    limit = f"a model of 1 GB generates at most {found / 1e9:.0f} tokens a second"
    section.tell("bandwidth", f"{found / 1e9:.1f} GB/s: {limit}" if found else "could not be measured")
    if section.facts["busy"]:
        section.problems.append(
            Problem(
                "other programs keep the CPU busy: Olivine is slower than it could be",
                "end them; then measure the bandwidth again: olivine doctor --measure",
            )
        )
    return section
