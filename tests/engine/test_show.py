"""``attncheck show``: what is drawn is what the target does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from properties.attention.case import Case
from properties.attention.trial import Trial
from properties.engine.doors import scenes
from properties.engine.doors.cli import main
from properties.engine.doors.scenes import Wanted
from properties.engine.search.find_target import Builtins, find_targets
from properties.engine.search.probe import make_target

TEXT = "The sky is blue and world is round"
FUTURE = """
import numpy as np

def attention(q, k, v, is_causal=False):
    logits = q @ k.swapaxes(-1, -2) * max(q.shape[3], 1) ** -0.5
    if is_causal:
        logits = np.where(np.tri(*logits.shape[2:], k=1, dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v

attention.supports = {"zero_sizes": False}
"""


def named(name: str) -> Any:
    if name.startswith("torch"):
        pytest.importorskip("torch")
    return find_targets(name, Builtins())[0]


def softmax(wanted: Wanted, head: int, dim: int) -> Any:
    """The weights of a text, as a textbook has them."""
    q, k = scenes.embedded(wanted.words, wanted.heads, dim, wanted.seed)
    logits = q[0, head] @ k[0, head].T / dim**0.5
    if wanted.causal:
        logits = np.where(np.tri(len(logits), dtype=bool), logits, -np.inf)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["numpy_matmul.attention", "numpy_matmul.multihead", "online_softmax.blocked_16", "torch_sdpa.flash"])
def test_the_weights_of_a_kernel_that_returns_none(name: str, causal: bool) -> None:
    """A fused kernel, and a layer, as well as a textbook's."""
    wanted = Wanted(text=TEXT, causal=causal, heads=3)
    scene = scenes.of_target(named(name), wanted)
    assert list(scene.rows) == list(scene.columns) == TEXT.split() and [title for title, _ in scene.panels] == [
        "head 0",
        "head 1",
        "head 2",
    ]
    for head, (_, matrix) in enumerate(scene.panels):
        assert np.abs(matrix - softmax(wanted, head, 16)).max() < 1e-6


def test_one_word_is_one_key() -> None:
    """Both "is" weigh alike in every row."""
    ((_, matrix),) = scenes.of_target(named("numpy_matmul.attention"), Wanted(text=TEXT, heads=1)).panels
    assert (matrix[:, 2] == matrix[:, 6]).all() and (matrix[2] == matrix[6]).all()


@pytest.mark.parametrize("name", ["numpy_matmul.attention", "numpy_matmul.multihead"])
def test_long_texts_are_read_in_blocks(name: str) -> None:
    """More keys than columns at once, and no multiple of them; where values must be as wide as keys, too."""
    target = named(name)
    seen = target.kind.view(target, "attention")
    trial = Trial(seen, Case(queries=3, keys=300, dim=8))
    read = scenes.weights(trial, trial.inputs)
    assert read.shape == (1, 1, 3, 300) and len(trial.runs) == (3 if name.endswith("attention") else 38)
    assert np.abs(read - trial.runs[0].exact.weights).max() < 1e-12


def test_a_mask_hides_what_it_says() -> None:
    panels = scenes.of_target(named("numpy_matmul.attention"), Wanted(mask="band", tokens=7)).panels
    hidden = ~Trial(named("numpy_matmul.attention"), Case(queries=7, keys=7, mask="band")).visible()[0, 0]
    assert hidden.any() and all(((matrix == 0) == hidden).all() for _, matrix in panels)


def test_linear_attention_has_weights() -> None:
    scene = scenes.of_target(named("linear_attention.parallel"), Wanted(text=TEXT, causal=True))
    for _, matrix in scene.panels:
        assert np.allclose(matrix.sum(axis=1), 1) and (matrix[np.triu_indices(8, 1)] == 0).all() and (matrix[np.tril_indices(8)] > 0).all()


# ---------------------------------------------------------------- positions


def test_a_table_of_positions_is_that_of_the_target() -> None:
    ((_, table),) = scenes.of_target(named("positions_numpy.sinusoidal"), Wanted(tokens=20, dim=6)).panels
    ((_, own),) = scenes.sinusoids(Wanted(tokens=20, dim=6)).panels
    assert np.abs(table - own).max() < 1e-12 and table[1, 0] == pytest.approx(np.sin(1)) and (table[0] == [0, 1] * 3).all()


@pytest.mark.parametrize("name", ["positions_numpy.rotary", "positions_torch.rotary_half"])
def test_rotary_angles_in_either_pairing(name: str) -> None:
    ((_, angle),) = scenes.of_target(named(name), Wanted(tokens=9, dim=8)).panels
    ((_, own),) = scenes.rotary(Wanted(tokens=9, dim=8)).panels
    assert np.abs(np.exp(1j * angle) - np.exp(1j * own)).max() < 1e-6  # in either type


def test_a_rotation_the_other_way_is_seen() -> None:
    def rotary(x: Any, positions: Any) -> Any:
        turn = np.exp(-1j * positions[:, None] * 10000.0 ** (-np.arange(0, x.shape[3], 2) / x.shape[3]))
        y = (x[..., ::2] + 1j * x[..., 1::2]) * turn
        return np.stack([y.real, y.imag], axis=-1).reshape(x.shape).astype(x.dtype)

    ((_, angle),) = scenes.of_target(make_target("backwards", rotary), Wanted(tokens=3, dim=4)).panels
    assert np.allclose(angle, [[0, 0], [-1, -0.01], [-2, -0.02]], atol=1e-6)


def test_slopes_and_buckets() -> None:
    panels = scenes.of_target(named("positions_numpy.slopes"), Wanted(heads=8, tokens=4)).panels
    assert [matrix[3, 0] for _, matrix in panels] == [-3 * 2.0**-n for n in range(1, 9)]
    ((_, matrix),) = scenes.of_target(named("positions_numpy.buckets"), Wanted(tokens=4)).panels
    assert (np.diag(matrix) == 0).all() and (matrix[0, 1:] != matrix[1:, 0]).all()


# ---------------------------------------------------------------- words


def test_windows_are_those_of_the_contract() -> None:
    panels = dict(scenes.windows(Wanted(tokens=5)).panels)
    i, j = np.indices((5, 7))
    assert (panels["2, 0, top-left"] == ((j <= i) & (j >= i - 2))).all()
    assert (panels["all, 0, bottom-right"] == (j <= i + 2)).all()


def test_the_variance_of_logits_grows_with_dim_unless_scaled() -> None:
    curves = dict(scenes.scaling(Wanted()).panels)
    dims, plain = curves["q·k"]
    _, scaled = curves["q·k / √dim"]
    assert np.abs(plain / dims - 1).max() < 0.2 and np.abs(scaled - 1).max() < 0.2


# ---------------------------------------------------------------- the command


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["show", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "numpy_matmul.multihead", "--text", "a b a", "--causal", "--heads", "1")
    lines = out.splitlines()
    assert status == 0 and lines[0] == "numpy_matmul.multihead: attention weights, causal"
    assert lines[3].split() == ["a", "b", "a"] and lines[4].split() == ["a", "1.00", "0.00", "0.00"]
    status, out, _ = run(capsys, "masks", "--tokens", "16")
    triangle = out.split("triangle")[1].splitlines()[1:17]
    assert [line.count("█") for line in triangle] == [2 * (row + 1) for row in range(16)]


def test_expected_beside_actual_on_a_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernel.py").write_text(FUTURE)
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "kernel.py:attention", "--case", "Case(queries=3, keys=3, is_causal=True)")
    expected, actual = out.split("expected\n")[1].split("actual, ✗ is wrong\n")
    assert status == 0 and "✗" not in expected and "0.00✗" not in actual
    assert [line.count("✗") for line in actual.splitlines()[1:4]] == [2, 3, 0]
    status, out, _ = run(capsys, "numpy_matmul.attention", "--case", "Case(queries=3, keys=3, is_causal=True)")
    assert status == 0 and out.count("✗") == 1  # in the words alone


@pytest.mark.parametrize("suffix, begins", [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_in_a_file(suffix: str, begins: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    file = tmp_path / f"weights.{suffix}"
    status, out, _ = run(capsys, "numpy_matmul.attention", "--text", TEXT, "-o", str(file))
    assert (status, out) == (0, f"{file}\n") and file.read_bytes().startswith(begins)
    if suffix == "svg":
        text = file.read_text(encoding="utf-8")
        assert all(f">{word}</text>" in text for word in TEXT.split()) and ">head 1</text>" in text
    for arguments in (["scaling"], ["numpy_matmul.attention", "--case", "Case(queries=3, keys=4)"]):
        assert run(capsys, *arguments, "-o", str(file))[0] == 0 and file.read_bytes().startswith(begins)


CANNOT = {
    "no such option of the target": (("positions_numpy.learned",), "the weights of positions_numpy.learned cannot be read"),
    "no window": (("numpy_matmul.attention", "--window", "2,0"), "numpy_matmul.attention takes no window_size"),
    "no window at all": (("torch_features.attention", "--window", "2"), "a window is LEFT,RIGHT"),
    "no format": (("numpy_matmul.attention", "-o", "weights.jpeg"), "a picture is written as .png, .svg, .pdf"),
    "no word": (("numpy_matmul.attention", "--text", " "), "there is no word in the text"),
    "several": (("online_softmax.*",), "a picture is of one target, online_softmax.* names"),
    "nothing": (("",), "attncheck: the target is empty"),
    "a typo": (("numpy_matmul.atention",), "did you mean"),
    "one weight": (("numpy_matmul.attention", "--case", "Case()"), "has one weight or none"),
    "a layer": (("transformer_numpy.encoder",), "the weights of transformer_numpy.encoder cannot be read"),
}


@pytest.mark.parametrize("why", CANNOT)
def test_what_cannot_be_drawn_is_told_in_a_sentence(why: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, says = CANNOT[why]
    status, out, errors = run(capsys, *arguments)
    assert (status, out) == (2, "") and says in errors and errors.count("\n") == 1
