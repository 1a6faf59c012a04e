"""Facts of the machine: which instructions, which device, which builds of the libraries. A known deviation may hold on some machines only.

A framework adds its own part; one that was not asked for is not imported.
"""

from __future__ import annotations

import itertools
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .protocol import Framework

# Every fact, with what it is where nothing is known of it. Versions are tuples of numbers, so that they can be compared.
FACTS: Mapping[str, Any] = MappingProxyType(
    {
        "cpu": "",  # the name of the model
        "instructions": (),  # names as torch.cpu.get_capabilities has them, as far as oneDNN may use them: "avx512_bf16", "amx_bf16"
        "aten": "",  # what PyTorch's own kernels use, lowered by ATEN_CPU_CAPABILITY: "DEFAULT", "AVX2", "AVX512"
        "onednn": (),  # () if PyTorch is built without, or it is switched off
        "device": "cpu",
        "gpu": "",
        "capability": (),  # (9, 0), of a GPU
        "cuda": (),
        "threads": 0,
        "python": (),
        "numpy": (),
        "torch": (),
        "torch_build": "",  # "2.13.0+cpu"
    }
)
OLDEST = (2, 11)  # what pyproject.toml asks for
OLD = f", older than {'.'.join(map(str, OLDEST))}: what is wrong in it is on record from there on"
LIBRARIES = {"oneDNN": "onednn", "CUDA": "cuda"}  # that are no distributions of their own → the fact that is their version

# What ONEDNN_MAX_CPU_ISA allows, from low to high (oneDNN's developer guide, "CPU dispatcher control"); the least of them that an
# instruction set needs. What is in no list is not capped.
CAPS = ("sse41", "avx", "avx2", "avx2_vnni", "avx2_vnni_2", "avx512_core", "avx512_core_vnni", "avx512_core_bf16", "avx512_core_fp16")
NEEDS = (
    (r"avx512_fp16|avx10_.*", "avx512_core_fp16"),
    (r"avx512_bf16", "avx512_core_bf16"),
    (r"avx512_vnni", "avx512_core_vnni"),
    (r"avx512_.*", "avx512_core"),
    (r"avx_vnni_int.*|avx_ne_convert", "avx2_vnni_2"),
    (r"avx_vnni", "avx2_vnni"),
    (r"avx2|fma3", "avx2"),
    (r"avx", "avx"),
)
# The last that a machine has is the one to name in a report.
TELLING = ("neon", "sve", "sve2", "sse4_1", "avx", "avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16")


def numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cu130 → (2, 13, 0); what is not made of numbers ends it."""
    parts = itertools.takewhile(str.isdecimal, version.partition("+")[0].split("."))
    return tuple(int(part) for part in parts)


_MEASURED: dict[tuple[str, str], Mapping[str, Any]] = {}


def machine(framework: Framework, device: str = "cpu") -> Mapping[str, Any]:
    """The facts, as far as the framework knows them: ``FACTS`` with values. Found once, when first asked for."""
    key = framework.name, device
    if key not in _MEASURED:
        _MEASURED[key] = measured(framework, device)
    return _MEASURED[key]


def measured(framework: Framework, device: str) -> Mapping[str, Any]:
    """The facts, found now."""
    own = {"cpu": cpu_model(), "device": device.partition(":")[0], "python": tuple(sys.version_info[:3])}
    return MappingProxyType({**FACTS, **own, **framework.facts(device)})


def cpu_model() -> str:
    """The name of the CPU, as the system has it."""
    if found := re.search(r"^model name\s*:\s*(.+)$", _proc_cpuinfo(), re.MULTILINE):
        return " ".join(found[1].split())
    if sys.platform == "darwin":
        try:
            asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=True, timeout=5)
            return asked.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or platform.machine()


def _proc_cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def kernel_flags() -> tuple[str, ...]:
    """The instruction sets that Linux lists, under the names that PyTorch has for them: for a PyTorch that does not say."""
    found = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _proc_cpuinfo(), re.MULTILINE)
    names = {"fma": "fma3", "pni": "sse3", "asimd": "neon"}
    return tuple(names.get(flag, re.sub(r"^avx512(?=[a-z])", "avx512_", flag)) for flag in (found[1].split() if found else ()))


def capped(instructions: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The instruction sets that oneDNN may use, where ONEDNN_MAX_CPU_ISA or its older name lowers them; sorted."""
    cap = (environment.get("ONEDNN_MAX_CPU_ISA") or environment.get("DNNL_MAX_CPU_ISA") or "").lower()
    base = re.sub(r"_amx.*", "", cap)  # what AMX is an extension of has all that is older
    plain = CAPS[-1] if base in ("avx10_1_512", "avx10_2_512") or (base == "avx512_core" and base != cap) else cap
    if plain not in CAPS:  # none, DEFAULT, ALL, or a word that oneDNN does not know either
        return tuple(sorted(instructions))

    def allowed(name: str) -> bool:
        if name.startswith("amx"):
            return "amx" in cap and (name != "amx_fp16" or "amx_fp16" in cap or "amx_2" in cap)
        needs = next((least for pattern, least in NEEDS if re.fullmatch(pattern, name)), CAPS[0])
        return CAPS.index(needs) <= CAPS.index(plain)

    return tuple(sorted(filter(allowed, instructions)))


def dotted(version: Iterable[int]) -> str:
    """(3, 12, 0) → 3.12.0"""
    return ".".join(map(str, version))


def machine_text(facts: Mapping[str, Any]) -> str:
    """The machine in one line: CPU or GPU, the instructions that are used, versions, threads."""
    best = next((name for name in reversed(TELLING) if name in facts["instructions"]), "")
    parts = [
        facts["cpu"],
        f"{facts['gpu']}, compute capability {dotted(facts['capability'])}" if facts["gpu"] else facts["device"],
        facts["aten"],
        f"oneDNN {dotted(facts['onednn'])} up to {best or 'nothing known'}" if facts["onednn"] else "",
        f"Python {dotted(facts['python'])}",
        f"NumPy {dotted(facts['numpy'])}" if facts["numpy"] else "",
        f"torch {facts['torch_build']}" + OLD * (facts["torch"] < OLDEST) if facts["torch"] else "",
        *(f"{name} {dotted(version)}" for name, version in facts.items() if name not in FACTS),  # of another framework
        f"CUDA {dotted(facts['cuda'])}" if facts["cuda"] else "",
        f"{facts['threads']} thread{'s' * (facts['threads'] != 1)}" if facts["threads"] else "",
    ]
    return " · ".join(part for part in parts if part)


def machine_json(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts as JSON has them: versions with dots, what is not known left out."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return dotted(value) if all(isinstance(part, int) for part in value) else list(value)
        return value

    return {name: plain(value) for name, value in facts.items() if value not in ("", (), 0)}
