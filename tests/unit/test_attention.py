"""Location-aware attention against the formula written out slot by slot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from audiovae.config import DecoderConfig
from audiovae.models.attention import LocationAttention
from audiovae.models.masking import length_mask

RATE = 0.75  # slots per decoder step
SLOTS = torch.tensor([7, 3, 1])


def small(**changes: object) -> LocationAttention:
    torch.manual_seed(0)
    config = DecoderConfig(
        memory_dim=6, attention_dim=5, location_filters=3, location_kernel=5, **changes
    )
    attention = LocationAttention(4, config, RATE)
    with torch.no_grad():
        attention.location.weight.mul_(4)  # where it looked before should matter
    return attention


def run(attention: LocationAttention, steps: int, rows: slice = slice(None)) -> torch.Tensor:
    """Weights (B, L, K) for seeded queries and memory."""
    generator = torch.Generator().manual_seed(1)
    memory = torch.randn(3, 7, 6, generator=generator)[rows]
    queries = torch.randn(steps, 3, 4, generator=generator)[:, rows]
    slots = SLOTS[rows]
    memory = memory[:, : int(slots.max())]
    mask = length_mask(slots, memory.shape[1])
    state, found = attention.start(memory), []
    for query, bias in zip(queries, attention.bias(steps, memory.shape[1]), strict=True):
        state = attention(query, state, memory, attention.key(memory), bias, mask)
        torch.testing.assert_close(state.context, (state.weights.unsqueeze(-1) * memory).sum(1))
        found.append(state.weights)
    return torch.stack(found, 1)


def by_hand(attention: LocationAttention, steps: int, row: int) -> np.ndarray:
    """e_ij = v.tanh(W s_i + V m_j + U f_ij + b) - ((j + .5) - (i + .5) rate)^2 / (2 s^2)."""
    generator = torch.Generator().manual_seed(1)
    memory = torch.randn(3, 7, 6, generator=generator)[row, : int(SLOTS[row])].double().numpy()
    queries = torch.randn(steps, 3, 4, generator=generator)[:, row].double().numpy()
    weight = {k: v.detach().double().numpy() for k, v in attention.state_dict().items()}
    previous, total, found = np.zeros(len(memory)), np.zeros(len(memory)), []
    for i, query in enumerate(queries):
        padded = np.pad(np.stack([previous, total]), ((0, 0), (2, 2)))
        energy = np.empty(len(memory))
        for j, slot in enumerate(memory):
            location = np.einsum("fct,ct->f", weight["location_conv.weight"], padded[:, j : j + 5])
            hidden = weight["query.weight"] @ query + weight["key.weight"] @ slot
            hidden = hidden + weight["key.bias"] + weight["location.weight"] @ location
            width = np.exp(weight["log_slots"])
            distance = (j + 0.5) - (i + 0.5) * RATE
            energy[j] = weight["score.weight"][0] @ np.tanh(hidden) - distance**2 / (2 * width**2)
        previous = np.exp(energy) / np.exp(energy).sum()
        total = total + previous
        found.append(previous)
    return np.array(found)


@torch.no_grad()
def test_equal_to_the_formula() -> None:
    attention = small(rate_bias_slots=2.0)
    found = run(attention, 9)
    for row, slots in enumerate(SLOTS.tolist()):
        wanted = by_hand(attention, 9, row)
        np.testing.assert_allclose(found[row, :, :slots], wanted, atol=1e-5)
    assert found[0].std(0).max() > 0.05


@torch.no_grad()
def test_weights_add_up_over_the_real_slots_in_any_batch() -> None:
    attention = small()
    found = run(attention, 9)
    torch.testing.assert_close(found.sum(2), torch.ones(3, 9))
    for row, slots in enumerate(SLOTS.tolist()):
        assert (found[row, :, slots:] == 0).all()
        alone = run(attention, 9, slice(row, row + 1))
        torch.testing.assert_close(found[row, :, :slots], alone[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_bias_keeps_to_the_known_rate() -> None:
    attention = small(rate_bias_slots=0.5)
    with torch.no_grad():
        attention.score.weight.zero_()
    weights = attention.bias(9, 7).softmax(1)
    centre = (weights * (torch.arange(7) + 0.5)).sum(1)
    middle = (torch.arange(9) + 0.5) * RATE
    torch.testing.assert_close(centre[1:8], middle[1:8], atol=0.1, rtol=0)
    faster = torch.tensor([-0.5 * ((0.5 - (i + 0.5) * 2 * RATE) / 0.5) ** 2 for i in range(4)])
    torch.testing.assert_close(attention.bias(4, 7, tempo=2.0)[:, 0], faster)
    assert (small(rate_bias=False).bias(9, 7) == 0).all()


@torch.no_grad()
def test_the_folded_filter_is_convolution_and_projection() -> None:
    attention = small()
    history = torch.rand(2, 2, 7, generator=torch.Generator().manual_seed(2))
    wanted = attention.location(attention.location_conv(history).transpose(1, 2))
    folded = torch.nn.functional.conv1d(history, attention.folded_location(), padding=2)
    torch.testing.assert_close(folded.transpose(1, 2), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rate_bias", [True, False])
def test_every_weight_is_learned(rate_bias: bool) -> None:
    attention = small(rate_bias=rate_bias)
    run(attention, 5)[:, :, 1].sum().backward()
    for name, parameter in attention.named_parameters():
        used = parameter.grad is not None and bool(parameter.grad.abs().sum() > 0)
        assert used == (rate_bias or name != "log_slots"), name
