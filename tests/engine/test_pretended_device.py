"""``--device cuda`` without a GPU: every property asks the built-ins that may run on one, on a device that only pretends to be one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from nightly import some_by_night
from pretended_device import PretendedDevice
from torch import Tensor

from properties import catalogue
from properties.engine.core.target import Target
from properties.engine.doors.cli import main
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan

BUILTINS = Builtins()
ON_BOTH = [
    name for name, entry in BUILTINS.entries.items() if {"cpu", "cuda"} <= set(entry.devices) and BUILTINS.unavailable(name, "cpu") is None
]


@pytest.fixture(autouse=True)
def there_is_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def asked_there(target: Target, *properties: str, examples: int = 2) -> Report:
    return verify_target(target, catalogue.select(properties), Plan(examples=examples, device="cuda", deviations=BUILTINS.deviations()))


def test_no_built_in_is_forgotten() -> None:
    assert len(ON_BOTH) == 22


@pytest.mark.parametrize("name", some_by_night(ON_BOTH, ("caches_torch.Contiguous",)))
def test_built_ins_stay_on_their_device(name: str) -> None:
    with PretendedDevice() as device:
        (target,) = find_targets(name, BUILTINS, device="cuda")
        report = asked_there(target)
    assert report.device == "cuda" and report.cases > 8 and device.made > report.cases
    assert not device.refused
    assert not report.findings


def test_the_door_asks_on_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    with PretendedDevice() as device:
        status = main(
            ["torch_sdpa.math", "--device", "cuda", "--in-process", "--cases", "2", "--property", "purity", "--property", "numbers"]
        )
    out = capsys.readouterr().out
    assert status == 0, out
    assert "NOTHING FOUND  torch_sdpa.math · torch · cuda" in out and device.made


def mask_at_home(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    logits = q @ k.mT * q.shape[-1] ** -0.5
    if is_causal:
        logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -torch.inf)  # no device
    return torch.softmax(logits, -1) @ v


def answer_at_home(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v).cpu()


def read_at_home(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scale = 1 / q.new_full((), q.shape[-1]).sqrt().numpy()
    return torch.softmax(q @ k.mT * float(scale), -1) @ v


def test_a_mask_made_on_the_cpu_is_refuted() -> None:
    with PretendedDevice() as device:
        report = asked_there(make_target("mine", mask_at_home, {"zero_sizes": False}, "cuda"), "causality", examples=10)
    assert "masked_fill" in device.refused
    assert all("Expected all tensors to be on the same device" in finding.violation.says for finding in report.findings)
    assert "future_tokens_are_ignored" in {finding.prop.name for finding in report.findings}


def test_a_table_made_on_the_cpu_is_refused() -> None:
    with PretendedDevice() as device:
        table, index = torch.zeros(3, 2), torch.zeros(4, dtype=torch.long, device="cuda")
        assert index[torch.zeros(2, dtype=torch.long)].device.type == "cuda"
        with pytest.raises(RuntimeError, match="same device"):
            table[index]
    assert device.refused == ["__getitem__"]


def test_an_answer_on_the_cpu_is_refuted() -> None:
    with PretendedDevice():
        report = asked_there(make_target("mine", answer_at_home, {"zero_sizes": False}, "cuda"), "purity")
    (finding,) = report.findings
    assert finding.prop.name == "output_has_the_right_form"
    assert "on cpu" in finding.violation.says and "on cuda" in finding.violation.says


def test_what_lies_there_is_no_numpy_array() -> None:
    with PretendedDevice(), pytest.raises(Exception, match="can't convert cuda:0"):
        make_target("mine", read_at_home, {"zero_sizes": False}, "cuda")
