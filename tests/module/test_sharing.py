"""A parameter that serves twice is found, whoever holds it; where a name says that it is tied, or it is no projection's, nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from module_styles import Plain
from torch import Tensor, nn

from impls.mutants import load_all
from properties import verify
from properties.engine.doors.cli import main
from properties.module.sharing import serving_twice

PROPERTY = "module_no_parameter_serves_twice"


class Clones(Plain):
    """[Linear] * 4: all four projections are one."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__(d_model, num_heads, dropout)
        del self.w_q, self.w_k, self.w_v, self.w_o
        self.linears = nn.ModuleList([nn.Linear(d_model, d_model)] * 4)

    def __getattr__(self, name: str) -> Any:
        places = ("w_q", "w_k", "w_v", "w_o")
        return self.linears[places.index(name)] if name in places else super().__getattr__(name)


class Copies(Clones):
    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.1) -> None:
        super().__init__(d_model, num_heads, dropout)
        self.linears = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))


class OneParameter(Plain):
    """Two layers whose weight is one parameter."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.w_k.weight = self.w_q.weight


class SharedKeys(OneParameter):
    """As in Reformer, and its name says so."""


class Tied(OneParameter):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.tie_qk = True


class Distinct(OneParameter):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(d_model, num_heads)
        self.tie_qk = False


class OneNorm(nn.TransformerEncoderLayer):
    """Two norms that are one, both of them used."""

    def __init__(self, d_model: int, nhead: int) -> None:
        super().__init__(d_model, nhead, 2 * d_model, batch_first=True)
        self.norm2 = self.norm1


class TwoNorms(nn.TransformerEncoderLayer):
    def __init__(self, d_model: int, nhead: int) -> None:
        super().__init__(d_model, nhead, 2 * d_model, batch_first=True)


class Embeds(nn.Module):
    """The last layer has the weights of the embedding, as in most language models."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.wte, self.lm_head = nn.Embedding(50, d_model), nn.Linear(d_model, 50, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.attention(x, x, x, need_weights=False)[0]) @ self.wte.weight


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize("thing", [Plain, Copies, SharedKeys, Tied, TwoNorms, Embeds])
def test_right_ones_are_let_go(thing: Any) -> None:
    assert verify(thing, properties=(PROPERTY,), cases=4).ok


@pytest.mark.nightly(but=3)
@pytest.mark.parametrize(
    ("thing", "names"),
    [
        (Clones, "linears.0.weight and linears.1.weight, of two places in a list"),
        (OneParameter, "w_q.weight and w_k.weight, of two projections of one attention"),
        (Distinct, "w_q.weight and w_k.weight, of two projections of one attention"),
        (OneNorm, "norm1.weight and norm2.weight, of two parts that are numbered"),
        (load_all()[0]["module_state.LayerTwice"].function, "layers.0.q_proj.weight and layers.1.q_proj.weight, of two places in a list"),
    ],
    ids=lambda thing: getattr(thing, "__name__", ""),
)
def test_what_serves_twice_is_named(thing: Any, names: str) -> None:
    (finding,) = verify(thing, properties=(PROPERTY,), cases=4).findings
    assert finding.violation.says == f"one parameter serves {names}: weights are tied, and no name says so"


def test_it_is_seen_of_a_module_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\n\nclass Mine(nn.Module):\n    def __init__(self, d_model: int):\n        super().__init__()\n"
        "        self.q_proj = self.k_proj = nn.Linear(d_model, d_model)\n        self.v_proj = nn.Linear(d_model, d_model)\n\n"
        "    def forward(self, x):\n        return (self.q_proj(x) @ self.k_proj(x).mT).softmax(-1) @ self.v_proj(x)\n"
    )
    assert main(["mine.py:Mine", "--property", PROPERTY, "--cases", "2"]) == 1
    assert "one parameter serves q_proj.weight and k_proj.weight" in " ".join(capsys.readouterr().out.split())


def test_layers_that_are_copies_of_each_other_have_parameters_of_their_own() -> None:
    assert not serving_twice(nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4), 2, enable_nested_tensor=False))
    assert serving_twice(nn.Sequential(*[nn.Linear(3, 3)] * 2)) and not serving_twice(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.ReLU()))
