"""A target on a device that has memory of its own is in a process of its own, too; the device only pretends to be one."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from nightly import one_in

torch = pytest.importorskip("torch")

from pretended_device import PretendedDevice

from properties import catalogue
from properties.attention.case import Case
from properties.engine.contained import apart, written
from properties.engine.contained import link as links
from properties.engine.contained.template import Template
from properties.engine.core.attempt import try_case
from properties.engine.core.target import CannotRun, Target
from properties.engine.doors import options
from properties.engine.frameworks import framework
from properties.engine.frameworks.torch import OnDevice
from properties.engine.search import find_target
from properties.engine.search.find_target import OWN, Builtins, containing, find_targets
from properties.engine.search.run import Report, verify_target
from properties.engine.search.search import Plan

FORKED: list[Template] = []


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedDevice]:
    """Workers are forks of this process, in which the device is pretended."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    framework("torch")
    monkeypatch.setattr(OnDevice, "plain", lambda self, array: array)  # where a tensor is, is what its subclass says
    with PretendedDevice() as pretended:
        forked(monkeypatch)
        yield pretended
    for template in FORKED:
        template.abandon()
    links.Link.left[:] = [(template, pid) for template, pid in links.Link.left if template not in FORKED]
    FORKED.clear()


def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers know what this process knows now."""
    FORKED.append(Template(links.loaded()))
    monkeypatch.setattr(links, "template", lambda device="cpu": FORKED[-1])


def there(folder: Path, code: str, name: str = "attention") -> Target:
    (folder / "kernel.py").write_text("import torch\n" + code)
    with containing(OWN):
        (target,) = find_targets(f"{folder / 'kernel.py'}:{name}", Builtins(), device="cuda")
    return target.kind.handshake(target, "cuda")


def asked(target: Target, *properties: str, examples: int = 6) -> Report:
    return verify_target(target, catalogue.select(properties), Plan(examples=examples, device="cuda", strict=False))


RIGHT = """
def attention(q, k, v, attn_mask=None):
    assert q.device.type == "cuda"
    logits = q @ k.mT * q.shape[-1] ** -0.5
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, float("-inf"))
    return torch.softmax(logits, -1) @ v
"""


@pytest.mark.nightly
def test_arrays_are_on_the_device_and_answers_come_back(tmp_path: Path) -> None:
    report = asked(there(tmp_path, RIGHT), "softmax", "masks", "purity", "gradients", examples=3)
    assert not report.findings and report.cases > 80, [f.violation.says for f in report.findings]


HALF = RIGHT.replace("logits = q @", "k, v = k[..., :8, :], v[..., :8, :]\n    logits = q @")
INTO = RIGHT.replace("    return", "    q.mul_(2)\n    return")
OVER = "def attention(q, k, v):\n    return q.copy_(torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v)"
HOME = RIGHT.replace(
    "return torch.softmax(logits, -1) @ v", "out = torch.softmax(logits, -1) @ v\n    return out.cpu() if len(out.T) > 6 else out"
)
WRONG = {
    "a key is forgotten": (HALF, "one_key_takes_all"),
    "an argument is written into": (INTO, "inputs_are_unchanged"),
    "the answer is an argument's memory": (OVER, "inputs_are_unchanged"),
    "the answer is at home": (HOME.replace("len(out.T)", "k.shape[-2]"), "output_is_inside_the_bound"),
}


@pytest.mark.parametrize("name", one_in(2, WRONG))
def test_a_wrong_kernel_is_refuted(name: str, tmp_path: Path) -> None:
    code, prop = WRONG[name]
    target = there(tmp_path, code)
    report = asked(target, prop, examples=20)
    assert prop in {finding.prop.name for finding in report.findings}, (target.wrong, target.untried, target.refuses, report.outcomes)


STICKY = RIGHT.replace(
    "    logits = q",
    """    if getattr(torch, "dead", False) or k.shape[-2] > 20:
        torch.dead = True
        raise RuntimeError("an illegal memory access")
    logits = q""",
)


def test_after_an_error_that_ends_all_work_on_the_device_another_process_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OnDevice, "usable", lambda self: not getattr(torch, "dead", False))
    forked(monkeypatch)
    target = there(tmp_path, STICKY)
    prop = catalogue.PROPERTIES["output_is_inside_the_bound"]
    for keys in (33, 2, 33, 2):
        violation = try_case(target, prop, Case(keys=keys, device="cuda"))
        assert (violation is not None) == (keys > 20)
        if violation:
            assert violation.says == "the call killed what the process has on the device (an illegal memory access)" and violation.killed


MODULE = """
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        w = torch.softmax(q @ k.mT * (c // self.heads) ** -0.5, -1)
        return self.out((w @ v).transpose(1, 2).reshape(b, n, c))
"""


def test_a_module_is_made_and_called_there(tmp_path: Path) -> None:
    report = asked(there(tmp_path, MODULE, "Attention"), examples=2)
    assert not report.findings and report.cases > 40, [(f.prop.name, f.violation.says) for f in report.findings]


def test_a_wrong_module_is_refuted(tmp_path: Path) -> None:
    report = asked(
        there(tmp_path, MODULE.replace("(c // self.heads) ** -0.5", "c**-0.5"), "Attention"),
        "module_is_the_attention_of_its_projections",
        examples=4,
    )
    assert "1/sqrt(width)" in " ".join(finding.violation.says for finding in report.findings)


def in_namespaces(code: str, device: str) -> str:
    """What a line of Python says in namespaces of its own."""
    reading, writing = os.pipe()

    def work() -> None:
        try:
            told = str(eval(code))
        except OSError as error:
            told = type(error).__name__ + f" {error.errno}"
        os.write(writing, told.encode())
        os._exit(0)

    made = apart.in_namespaces(work, [], [], device)
    os.close(writing)
    if made is None:
        pytest.skip("the system has no namespaces")
    with open(reading, encoding="utf-8") as told, made[1]:
        said = told.read()
    return said


NAMED = "open('/proc/self/task/%d/comm' % __import__('threading').get_native_id(), 'w').write('gpu')"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_driver_names_its_threads_and_changes_nothing_of_the_system(device: str) -> None:
    assert in_namespaces(NAMED, device) == ("3" if device == "cuda" else f"OSError {errno.EROFS}")
    for place in ("sys/kernel/hostname", "sys/kernel/core_pattern", "sys/vm/swappiness"):
        assert in_namespaces(f"open('/proc/{place}', 'w')", device) in (f"OSError {errno.EROFS}", "PermissionError 13"), place


def test_in_a_domain_a_driver_names_its_threads() -> None:
    pid = os.fork()
    if not pid:
        try:
            written.into_a_domain()
            eval(NAMED)
            os._exit(0)
        except OSError:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_caches_that_a_first_kernel_makes_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    written.make_caches("cpu")
    assert {place.name for place in tmp_path.iterdir()} == {".cache"}
    written.make_caches("cuda")
    assert {place.name for place in tmp_path.iterdir()} == {".cache", ".triton", ".nv"}
    assert {str(tmp_path / name) for name in (".cache", ".triton", ".nv")} <= set(written._writable())
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    written.make_caches("cuda")


KERNEL = "import triton\nattention = None"


@pytest.mark.parametrize(
    ("code", "able", "gpu", "placed", "on"),
    [
        ("attention = None", ("cpu", "cuda"), True, False, "cpu"),
        ("attention = None", ("cuda",), True, False, "cuda"),
        ("attention = None", ("cuda",), False, False, ""),
        ("attention = None", ("cuda",), True, True, ""),
        ("attention = None", (), True, False, ""),
        (KERNEL, ("cpu", "cuda"), True, False, "cuda"),
        (KERNEL, ("cpu", "cuda"), False, False, "cpu"),
        (KERNEL, ("cpu", "cuda"), True, True, "cpu"),
        ("ext = load_inline('a', cuda_sources=code)", ("cpu", "cuda"), True, False, "cuda"),
    ],
)
def test_where_nobody_says_it_the_device_is_the_one_it_is_written_for(
    code: str, able: tuple[str, ...], gpu: bool, placed: bool, on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel.py").write_text(code)
    monkeypatch.setattr(find_target, "no_device", lambda device: "" if gpu else "there is none")

    def find(device: str) -> str:
        if device not in able:
            raise CannotRun(f"not on {device}")
        return f"found on {device}"

    def found() -> tuple[str, str]:
        return find_target.on_either(f"{tmp_path / 'kernel.py'}:attention", find, "cpu", placed)

    if on:
        assert found() == (f"found on {on}", on)
    else:
        with pytest.raises(CannotRun, match="not on cpu"):
            found()


def test_a_case_names_its_device() -> None:
    def device(*words: str) -> str:
        return options.device_of(options.parser().parse_args(["a.py:attention", *words]))

    assert device() == "cpu" and device("--device", "cuda") == "cuda"
    assert device("--case", "Case(keys=2, device='cuda:1')") == "cuda:1"
    assert device("--case", "Case(device='cuda')", "--device", "cpu") == "cpu"
