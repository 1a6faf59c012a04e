"""The pieces make a transformer that learns; without a piece that matters it does not."""

from __future__ import annotations

from functools import cache
from itertools import permutations
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from impls.transformer import BEGIN, END, PAD, EncoderStack, Transformer
from impls.transformer_layers import decoder, encoder

LONGEST, SYMBOLS, STEPS, BATCH = 4, 7, 250, 96
FIRST = 3  # the first symbol


@cache
def sequences(task: str, held_out: bool) -> tuple[Any, Any]:
    """Sources (count, LONGEST) and targets (count, LONGEST + 1) with END, both padded: all of two symbols or more, none of them twice.

    One in ten, drawn by lot, is held out: never trained on.
    """
    bodies = [body for n in range(2, LONGEST + 1) for body in permutations(range(FIRST, FIRST + SYMBOLS), n)]
    answers = [body[::-1] if task == "reverse" else body for body in bodies]
    source = torch.tensor([[*body, *[PAD] * (LONGEST - len(body))] for body in bodies])
    target = torch.tensor([[*body, END, *[PAD] * (LONGEST - len(body))] for body in answers])
    lot = torch.rand(len(source), generator=torch.Generator().manual_seed(3)) < 0.1
    return source[lot == held_out], target[lot == held_out]


def loss_of(model: Any, source: Any, target: Any) -> Any:
    """Cross-entropy of every next token, the earlier ones given."""
    given = torch.cat((torch.full((len(target), 1), BEGIN), target[:, :-1]), dim=1)
    return torch.nn.functional.cross_entropy(model(source, given).flatten(0, 1), target.flatten(), ignore_index=PAD)


def right(model: Any, task: str) -> float:
    """The share of held-out sequences that are answered without any mistake, token by token."""
    source, target = sequences(task, True)
    answer = model.generate(source, LONGEST + 1)
    return float(((answer == target) | (target == PAD)).all(dim=1).float().mean())


@cache
def trained(task: str, steps: int = STEPS, **how: Any) -> tuple[Any, float]:
    """A small transformer after training, and its loss on sequences held out."""
    torch.manual_seed(0)
    model = Transformer(FIRST + SYMBOLS, embed=32, num_heads=4, hidden=64, layers=1, **how)
    optimiser = torch.optim.Adam(model.parameters(), lr=8e-3, betas=(0.9, 0.98))
    decay = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.05, steps)
    generator, (source, target) = torch.Generator().manual_seed(2), sequences(task, False)
    often = float(SYMBOLS) ** -(source != PAD).sum(-1)  # every length as often as every other
    for _ in range(steps):
        batch = torch.multinomial(often, BATCH, replacement=True, generator=generator)
        loss = loss_of(model, source[batch], target[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        decay.step()
    with torch.no_grad():
        return model, float(loss_of(model, *sequences(task, True)))


@pytest.mark.parametrize(
    ("task", "norm_first"),
    [("copy", False), pytest.param("reverse", True, marks=pytest.mark.nightly)],
    ids=["copy, post-norm", "reverse, pre-norm"],
)
def test_it_learns(task: str, norm_first: bool) -> None:
    """It copies and reverses sequences that it has never seen, without any mistake in nearly all of them, decoding greedily."""
    model, loss = trained(task, norm_first=norm_first)
    print(f"loss {loss:.2g}, right {right(model, task):.1%}")
    assert right(model, task) >= 0.9


@pytest.mark.nightly
def test_without_positions_it_cannot_reverse() -> None:
    """Attention alone knows no order: what it sees is a set."""
    model, loss = trained("reverse", positions=False)
    print(f"loss {loss:.2g}, right {right(model, 'reverse'):.1%}")
    assert right(model, "reverse") < 0.6 and loss > 0.2


@pytest.mark.nightly
def test_a_decoder_that_sees_the_future_learns_to_look_it_up() -> None:
    """The loss with all tokens given goes to nothing, and decoding, where there is no future to look at, fails."""
    model, loss = trained("reverse", is_causal=False, norm_first=True)
    print(f"loss {loss:.2g}, right {right(model, 'reverse'):.1%}")
    assert loss < 0.02
    assert right(model, "reverse") < 0.1


def test_padding_of_the_source_does_not_matter() -> None:
    """The trained model answers a short sequence alike, however far it is padded."""
    model, _ = trained("copy", norm_first=False)
    short = torch.tensor([[5, 7, PAD, PAD]])
    assert model.generate(short, 3).tolist() == model.generate(short[:, :2], 3).tolist() == [[5, 7, END]]


# ---------------------------------------------------------------- stacks


def test_layers_of_a_stack_share_no_parameters() -> None:
    """Bugs of ``[layer] * N``: every parameter has its own memory, and begins with numbers of its own."""
    stack = EncoderStack(3, 16, 4, 32)
    places = [p.data_ptr() for p in stack.parameters()]
    assert len(places) == len(set(places)) == 3 * 16
    first, second = (layer.weights["w_q"] for layer in list(stack.layers)[:2])
    assert not torch.equal(first, second)
    before = second.detach().clone()
    with torch.no_grad():
        first.add_(1.0)
    assert torch.equal(second, before)


def test_a_stack_is_the_composition_of_its_layers() -> None:
    """N layers, one after the other, bit for bit; and each of them has a part in the result."""
    torch.manual_seed(0)
    model = Transformer(11, 16, 4, 32, layers=3)
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    y, z = x, x
    for layer in model.encoder.layers:
        y = encoder(y, dict(layer.weights.items()), num_heads=4)
    for layer in model.decoder.layers:
        z = decoder(z, memory, dict(layer.weights.items()), num_heads=4, is_causal=True)
    assert torch.equal(model.encoder(x), y)
    assert torch.equal(model.decoder(x, memory), z)
    for stack, call in ((model.encoder, lambda: model.encoder(x)), (model.decoder, lambda: model.decoder(x, memory))):
        plain = call()
        for layer in stack.layers:
            with torch.no_grad():
                layer.weights["w_2"].neg_()
                assert not torch.equal(call(), plain)
                layer.weights["w_2"].neg_()


def test_gradients_reach_every_parameter() -> None:
    """Each parameter but the biases of keys, which shift whole rows of logits, and the table receives a gradient."""
    torch.manual_seed(0)
    model = Transformer(11, 16, 4, 32, layers=2)
    source, target = sequences("copy", False)
    loss_of(model, source[-16:], target[-16:]).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # A bias of keys shifts all logits of a row alike: its gradient is zero but for rounding.
        assert bool(parameter.grad.abs().max() < 1e-6) == name.endswith("b_k"), name
