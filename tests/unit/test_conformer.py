"""The encoder: an utterance alone is the utterance in a batch, whatever pads it."""

from __future__ import annotations

import pytest
import torch

from audiovae.config import EncoderConfig
from audiovae.models.conformer import ConformerEncoder, _rotate

LENGTHS = torch.tensor([37, 1, 20, 33, 4])


@pytest.fixture(scope="module")
def encoder() -> ConformerEncoder:
    torch.manual_seed(0)
    return ConformerEncoder(8, EncoderConfig(dim=16, heads=2, conv_kernel=7), 2).eval()


@pytest.fixture(scope="module")
def mel() -> torch.Tensor:
    return torch.randn(5, 37, 8, generator=torch.Generator().manual_seed(1))


def test_four_frames_make_a_step(encoder: ConformerEncoder, mel: torch.Tensor) -> None:
    hidden, lengths = encoder(mel, LENGTHS)
    assert hidden.shape == (5, 10, 16)
    assert lengths.tolist() == [10, 1, 5, 9, 1]


@torch.no_grad()
def test_neither_batch_nor_padding_changes_an_utterance(
    encoder: ConformerEncoder, mel: torch.Tensor
) -> None:
    together, steps = encoder(mel, LENGTHS)
    longer = torch.full((5, 60, 8), 1e3)  # not even zeros need to stand in the padding
    for n, length in enumerate(LENGTHS.tolist()):
        longer[n, :length] = mel[n, :length]
    padded, _ = encoder(longer, LENGTHS)
    for n, (length, step) in enumerate(zip(LENGTHS.tolist(), steps.tolist(), strict=True)):
        alone, _ = encoder(mel[n : n + 1, :length], LENGTHS[n : n + 1])
        assert alone.shape[1] == step
        torch.testing.assert_close(together[n, :step], alone[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(padded[n, :step], alone[0], atol=1e-5, rtol=0)


@torch.no_grad()
def test_every_step_hears_the_whole_utterance_in_order(
    encoder: ConformerEncoder, mel: torch.Tensor
) -> None:
    one, length = mel[:1], LENGTHS[:1]
    hidden, _ = encoder(one, length)
    changed = one.clone()
    changed[:, -1] += 3
    assert ((encoder(changed, length)[0] - hidden).abs().amax(2) > 1e-5).all()
    backwards, _ = encoder(one.flip(1), length)
    assert (backwards.flip(1) - hidden).abs().max() > 0.1


def test_rotary_positions_are_relative() -> None:
    generator = torch.Generator().manual_seed(2)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=generator).double().expand(-1, -1, -1, 12, -1)
    score = (_rotate(q) @ _rotate(k).transpose(-1, -2))[0, 0]
    for distance in range(-11, 12):
        along = score.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-5, rtol=0)
    assert score[0].std() > 0.1
