"""What a deviation and a report know of the machine; and the product of oneDNN that is wrong on some, where it is pretended."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
from nightly import more_by_night, some_by_night

torch = pytest.importorskip("torch")

from known import deviation, target, written
from pretended_amx import WITH, WITHOUT, defect, no_defect, pretend

from properties import catalogue
from properties.attention.cases import Case
from properties.engine.core.attempt import try_case
from properties.engine.doors import cli
from properties.engine.doors.checks import deviation_checks
from properties.engine.frameworks import framework
from properties.engine.frameworks.machine import (
    FACTS,
    OLDEST,
    capped,
    cpu_model,
    kernel_flags,
    machine,
    machine_json,
    machine_text,
    measured,
)
from properties.engine.report.as_json import report_json
from properties.engine.report.text import matrices_text, verdict_text
from properties.engine.search.deviations import read_deviations
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan, search

ROOT = Path(__file__).parents[2]
AMX: dict[str, Any] = {"instructions": WITH, "onednn": (3, 12, 0)}
NO_AMX: dict[str, Any] = {"instructions": WITHOUT, "onednn": (3, 12, 0)}
INSIDE = "output_is_inside_the_bound"

# ---------------------------------------------------------------- facts

ALL = (
    "aes",
    "amx_bf16",
    "amx_fp16",
    "amx_int8",
    "amx_tile",
    "avx",
    "avx10_1",
    "avx2",
    "avx512_bf16",
    "avx512_f",
    "avx512_fp16",
    "avx512_vnni",
    "avx_vnni",
    "fma3",
)
CAPPED: dict[str, set[str]] = {  # what is taken away
    "": set(),
    "DEFAULT": set(),
    "all": set(),
    "AVX1024_NEVER": set(),
    "AVX10_1_512_AMX_FP16": set(),
    "AVX512_CORE_AMX": {"amx_fp16"},
    "AVX10_1_512_AMX": {"amx_fp16"},
    "AVX512_CORE_FP16": {"amx_bf16", "amx_fp16", "amx_int8", "amx_tile"},
    "avx10_1_512": {"amx_bf16", "amx_fp16", "amx_int8", "amx_tile"},
    "AVX512_CORE_BF16": {"amx_bf16", "amx_fp16", "amx_int8", "amx_tile", "avx10_1", "avx512_fp16"},
    "AVX512_CORE": {name for name in ALL if name.startswith(("amx", "avx10", "avx512_bf16", "avx512_fp16", "avx512_vnni"))},
    "AVX2": {name for name in ALL if name.startswith(("amx", "avx10", "avx512", "avx_vnni"))},
    "SSE41": {name for name in ALL if name.startswith(("amx", "avx", "fma"))},
}


@pytest.mark.parametrize("cap", CAPPED)
def test_what_onednn_may_use_is_capped(cap: str) -> None:
    left = tuple(name for name in ALL if name not in CAPPED[cap])
    assert capped(reversed(ALL), {"ONEDNN_MAX_CPU_ISA": cap}) == left
    assert capped(ALL, {"DNNL_MAX_CPU_ISA": cap}) == left
    assert capped(ALL, {"ONEDNN_MAX_CPU_ISA": cap, "DNNL_MAX_CPU_ISA": "SSE41"}) == left or not cap


def test_every_framework_tells_of_known_facts_alone() -> None:
    for name in ("numpy", "torch"):
        made = framework(name)
        found = measured(made, "cpu")
        assert found.keys() == FACTS.keys() and machine(made, "cpu") is machine(made, "cpu")
        assert all(type(found[fact]) is type(FACTS[fact]) for fact in FACTS)
        assert found["cpu"] == cpu_model() != "" and found["numpy"] >= (1, 26) and found["python"] == sys.version_info[:3]
    assert found["torch_build"] == torch.__version__ and found["threads"] == torch.get_num_threads()
    assert found["aten"] and found["instructions"]


def test_onednn_that_is_switched_off_is_none() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TF32, about which nobody asked
        torch.backends.mkldnn.set_flags(False)
        try:
            found = measured(framework("torch"), "cpu")
        finally:
            torch.backends.mkldnn.set_flags(True)
    assert found["onednn"] == () and measured(framework("torch"), "cpu")["onednn"] != ()


def test_without_a_word_from_torch_the_kernel_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "model name\t: Intel(R)  Xeon(R)\nflags\t\t: fpu pni fma avx2 avx512f avx512vl avx512_bf16 amx_bf16 amx_tile\nflags\t\t: none\n"
    monkeypatch.setattr("properties.engine.frameworks.machine._proc_cpuinfo", lambda: text)
    assert kernel_flags() == ("fpu", "sse3", "fma3", "avx2", "avx512_f", "avx512_vl", "avx512_bf16", "amx_bf16", "amx_tile")
    assert cpu_model() == "Intel(R) Xeon(R)"
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert "amx_tile" in measured(framework("torch"), "cpu")["instructions"]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    assert "amx_tile" not in measured(framework("torch"), "cpu")["instructions"]


SHOWN: dict[str, dict[str, Any]] = {
    "A · cpu · Python 3.11.7 · NumPy 2.4.6": {},
    "A · cpu · AVX2 · oneDNN 3.12.0 up to amx_bf16 · Python 3.11.7 · NumPy 2.4.6 · torch 2.13.0+cpu · 1 thread": {
        **AMX,
        "aten": "AVX2",
        "torch": (2, 13, 0),
        "torch_build": "2.13.0+cpu",
        "threads": 1,
    },
    "A · H200, compute capability 9.0 · Python 3.11.7 · NumPy 2.4.6 · torch 2.13.0+cu130 · CUDA 13.0 · 16 threads": {
        "device": "cuda",
        "gpu": "H200",
        "capability": (9, 0),
        "torch": (2, 13, 0),
        "torch_build": "2.13.0+cu130",
        "cuda": (13, 0),
        "threads": 16,
    },
}


@pytest.mark.parametrize("line", SHOWN)
def test_the_machine_in_a_line(line: str) -> None:
    facts = {**FACTS, "cpu": "A", "python": (3, 11, 7), "numpy": (2, 4, 6), **SHOWN[line]}
    assert machine_text(facts) == line


def test_an_old_torch_is_told_to_be_old() -> None:
    """Older than what the extra asks for."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["torch"]
    assert extra == ["torch>=" + ".".join(map(str, OLDEST))]
    old, new = ({**FACTS, "torch": version, "torch_build": "x"} for version in ((2, 4, 1), OLDEST))
    assert "older than 2.11" in machine_text(old) and "older" not in machine_text(new)


def test_json_has_versions_with_dots_and_nothing_unknown() -> None:
    facts = {**FACTS, **AMX, "cpu": "A", "capability": (9, 0)}
    assert machine_json(facts) == {"cpu": "A", "instructions": list(WITH), "onednn": "3.12.0", "device": "cpu", "capability": "9.0"}


def test_the_version_names_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    plain = capsys.readouterr().out
    assert cli.main(["--version", "-v"]) == 0
    assert capsys.readouterr().out == plain + machine_text(machine(framework("torch"), "cpu")) + "\n"
    assert plain.startswith("attncheck ") and plain.count("\n") == 1


def test_reports_name_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, cpu="A CPU", threads=7)
    reports = [Report(target, "cpu") for name in ("loops.attention", "torch_manual.attention") for target in find_targets(name, Builtins())]
    alone, known = (f"on        {machine_text(report.machine)}" for report in reports)
    assert "A CPU · cpu" in alone and "torch" not in alone.replace("7 threads", "") and "torch 2" in known
    assert verdict_text(reports[0], verbose=True).endswith(alone) and verdict_text(reports[1], verbose=True).endswith(known)
    assert matrices_text(reports, [], {}).endswith(f"  on  {machine_text(reports[1].machine)}")
    assert [report_json(report)["machine"].get("cpu") for report in reports] == ["A CPU"] * 2
    json.dumps([report_json(report) for report in reports])


ASKS = """
import sys
from properties.engine.doors.cli import main
status = main(["loops.attention", "--property", "rows_sum_to_one", "--cases", "3", "-q"])
sys.exit(status or ("torch" in sys.modules and "torch was imported"))
"""


def test_what_is_not_about_torch_does_not_import_it() -> None:
    """The file of known deviations has entries on torch's machine; the report names the machine all the same."""
    ran = subprocess.run([sys.executable, "-c", ASKS], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert f"on        {cpu_model()} · cpu" in ran.stdout


# ---------------------------------------------------------------- where


WHERE: dict[str, bool] = {
    "": True,
    "'amx_bf16' in instructions and device == 'cpu'": True,
    "'amx_bf16' not in instructions": False,
    "onednn >= (3, 12) and onednn < (3, 13)": True,
    "torch >= (99,) or capability >= (9, 0)": False,
    "gpu != '' or cuda != ()": False,
    "threads > 0 and not (aten == 'AVX512')": True,
}


@pytest.mark.parametrize("where", WHERE)
def test_conditions_over_the_machine(where: str) -> None:
    assert deviation(where=where).found_on({**FACTS, **AMX, "threads": 2, "aten": "AVX2"}) is WHERE[where]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("instruction == ()", "a machine has no fact 'instruction'; did you mean instructions?"),
        ("device == 'cuda' and zzz == 1", "a machine has no fact 'zzz'; there are cpu, instructions"),
        ("keys > 2", "a machine has no fact 'keys'"),
        ("len(instructions) > 2", "cannot be used in a condition: len(instructions)"),
        ("onednn > 3", "makes no sense"),
        ("onednn >", "is no condition: invalid syntax"),
    ],
)
def test_a_wrong_condition_is_told_when_it_is_read(where: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="known deviation 1: ") as caught:
        read_deviations(written(tmp_path / "d.toml", where=where))
    assert says in str(caught.value) and "\n" not in str(caught.value)
    (read,) = read_deviations(written(tmp_path / "d.toml", where="device == 'cpu'"))
    assert read.where == "device == 'cpu'"


def test_elsewhere_it_is_not_looked_for_and_sets_nothing_aside() -> None:
    def run(where: str) -> Report:
        plan = Plan(examples=60, deviations=(deviation(where=where),))
        return verify_target(target(), catalogue.select(("rows_sum_to_one",)), plan)

    here, elsewhere = run("device == 'cpu'"), run("device == 'cuda'")
    assert here.ok and here.statuses and here.outcomes["rows_sum_to_one"].set_aside
    assert elsewhere.findings and not elsewhere.statuses and not elsewhere.outcomes["rows_sum_to_one"].set_aside


@pytest.mark.parametrize(
    ("version", "fixed", "here", "found"),
    [
        ("oneDNN 3.12", "", True, True),
        ("oneDNN 3", "", True, True),
        ("oneDNN 3.11", "", False, True),
        ("oneDNN 3.1", "", False, True),
        ("oneDNN 3", "3.12", True, False),
        ("oneDNN 3", "3.13", True, True),
        ("CUDA 13", "1", False, True),  # there is none
    ],
)
def test_the_version_of_a_library_within_another(version: str, fixed: str, here: bool, found: bool) -> None:
    made = deviation(version=version, fixed=fixed)
    assert made.seen_here({**FACTS, **AMX}) is here and made.found_on({**FACTS, **AMX}) is found
    assert not made.seen_here() and made.found_on(FACTS)  # nothing is known of it: it is neither here nor over


# ---------------------------------------------------------------- oneDNN's product on AMX

KNOWN = tuple(entry for entry in Builtins().deviations() if entry.version.startswith("oneDNN"))
(LAYER,) = find_targets("torch_manual.multihead", Builtins())
SHORT = Plan(examples=3, deviations=KNOWN, dtypes=("bfloat16",))


def layer_report() -> Report:
    return verify_target(LAYER, catalogue.select((INSIDE,)), SHORT)


def test_the_pretended_defect_is_that_of_the_script() -> None:
    """NaN between the rows reaches the product, of K = 15, 17, 31, 33; not of 16 and 32, not through bmm, not in float16, and not afterwards."""

    def leaks(k: int, how: Any, dtype: torch.dtype = torch.bfloat16) -> bool:
        big = torch.full((32, k + 8), torch.nan, dtype=dtype)
        x, w = big[:, :k], torch.ones(32, k, dtype=dtype)
        x.copy_(torch.ones(32, k))
        return bool(how(x, w).isnan().any())

    linear, product = torch.nn.functional.linear, lambda x, w: x @ w.T
    with defect() as met:
        for how in (linear, product, lambda x, w: linear(x[None], w, w[:, 0])):
            assert [k for k in (15, 16, 17, 31, 32, 33) if leaks(k, how)] == [15, 17, 31, 33]
            assert not leaks(17, how, torch.float16) and not leaks(17, how, torch.float32)
        assert not leaks(17, lambda x, w: torch.bmm(x[None], w.T[None]))
        assert not leaks(17, lambda x, w: linear(x.contiguous(), w))
    assert met.spoiled == 12
    with no_defect():
        assert not leaks(17, linear)


@pytest.mark.parametrize(("number", "name"), [(number, name) for number, entry in enumerate(KNOWN) for name in entry.targets])
def test_every_stored_case_shows_the_defect(number: int, name: str) -> None:
    (seen,) = find_targets(name, Builtins())
    entry = KNOWN[number]
    with defect():
        assert try_case(seen, catalogue.PROPERTIES[entry.shows], entry.case)
    with no_defect():
        assert not try_case(seen, catalogue.PROPERTIES[entry.shows], entry.case)


@pytest.mark.parametrize(
    "case",
    [
        Case(queries=33, dim=17, dtype="bfloat16", mask="random", layout="padded"),
        Case(queries=17, keys=2, dim=17, dtype="bfloat16", layout="padded"),
    ],
)
def test_the_cases_that_were_found_are_known(case: Case) -> None:
    assert [entry.shows for entry in KNOWN if entry.concerns(LAYER.name, INSIDE) and entry.matches(case)] == [INSIDE]
    assert not any(entry.concerns(LAYER.name, INSIDE) and entry.matches(dataclasses.replace(case, layout="contiguous")) for entry in KNOWN)


def test_with_amx_and_the_defect_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, **AMX)
    with defect():
        report = layer_report()
        for check in deviation_checks([LAYER], KNOWN, "cpu"):
            check()
    assert report.ok and [status.state for status in report.statuses] == ["still there"] * 2
    assert verdict_text(report, verbose=True).count("KNOWN ") == 2 and {
        entry["state"] for entry in report_json(report)["known_deviations"]
    } == {"still there"}


@pytest.mark.parametrize(("version", "ok"), [((3, 12, 0), False), ((3, 15, 1), False), ((4, 0, 0), True)])
def test_with_amx_and_without_the_defect_it_is_gone(version: tuple[int, ...], ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, **AMX | {"onednn": version})
    with no_defect():
        report = layer_report()
    assert report.ok is ok and [status.state for status in report.statuses] == ["gone"] * 2
    assert verdict_text(report, verbose=True).count("GONE ") == 2 and not report.findings
    for check in deviation_checks([LAYER], KNOWN, "cpu"):
        with no_defect():
            if ok:
                check()
            else:
                with pytest.raises(AssertionError, match="GONE"):
                    check()


@pytest.mark.parametrize("facts", [NO_AMX, AMX | {"onednn": ()}, AMX | {"onednn": (2, 7)}])
def test_without_amx_nothing_is_told(facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, **facts)
    report = layer_report()
    assert report.ok and not report.statuses and not deviation_checks([LAYER], KNOWN, "cpu")
    assert not any(word in verdict_text(report) for word in ("KNOWN", "known ", "GONE", "set aside"))


def test_the_command_line_on_amx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    pretend(monkeypatch, **AMX)
    arguments = [LAYER.name, "-v", "--property", INSIDE, "--dtype", "bfloat16", "--cases", "5", "--json", "report.json"]
    with defect():
        assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert f"KNOWN    {INSIDE} · {LAYER.name}" in out and "oneDNN 3.12.0 up to amx_bf16" in out
    (report,) = json.loads(Path("report.json").read_text())["reports"]
    assert report["machine"]["onednn"] == "3.12.0" and "amx_bf16" in report["machine"]["instructions"]
    with no_defect():
        assert cli.main(arguments) == 1
    assert "GONE " in capsys.readouterr().out


GAPS = [
    INSIDE,
    "equal_logits_share_equally",
    "memory_layout_changes_nothing",
    "head_concatenation_preserves_shape",
    "chunks_merge_to_the_whole",
]


@pytest.mark.nightly(but=2)
@pytest.mark.parametrize("name", some_by_night(GAPS, GAPS[::3]))
def test_nothing_else_is_refuted_where_the_defect_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the defect shows in what is set aside, so that the search has met it."""
    pretend(monkeypatch, **AMX)
    with defect() as met:
        outcome = search(LAYER, catalogue.PROPERTIES[name], Plan(examples=more_by_night(100, 300), deviations=KNOWN, dtypes=("bfloat16",)))
    assert outcome.finding is None and outcome.set_aside, outcome.finding
    assert not met.spoiled


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("name", ["transformer_layers.encoder", "transformer_layers.decoder", "torch_layers.encoder_nested"])
def test_nor_in_layers_of_a_transformer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, **AMX)
    (block,) = find_targets(name, Builtins())
    rows = dataclasses.replace(catalogue.PROPERTIES["block_is_inside_the_bound"], domain={"layout": ("every_other_row",)})
    with defect() as met:
        outcome = search(block, rows, Plan(examples=more_by_night(30, 60), deviations=Builtins().deviations(), dtypes=("bfloat16",)))
    assert outcome.finding is None and outcome.set_aside and outcome.cases, outcome.finding
    assert not met.spoiled


def test_the_script_of_the_finding_runs() -> None:
    ran = subprocess.run([sys.executable, ROOT / "docs" / "findings" / "onednn_amx_bfloat16.py"], capture_output=True, text=True)
    said = ran.stdout.splitlines()[-1]
    here = "amx_bf16" in machine(framework("torch"), "cpu")["instructions"]
    assert ran.returncode == 0 and said in ("the defect does not show here", *["the defect shows here"] * here), ran.stdout + ran.stderr


def test_every_finding_has_a_script_that_is_short() -> None:
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    for script in (ROOT / "docs" / "findings").glob("*.py"):
        assert f"(findings/{script.name})" in page and len(script.read_text(encoding="utf-8").splitlines()) < 40


def test_another_framework_is_named_with_its_version() -> None:
    text = machine_text({**FACTS, "cpu": "A", "python": (3, 11, 7), "jax": (0, 10, 2)})
    assert text == "A · cpu · Python 3.11.7 · jax 0.10.2"
