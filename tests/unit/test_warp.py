"""Vocal tract perturbation: each utterance's bins move together, by a factor in the range."""

from __future__ import annotations

import torch

from audiovae.models.warp import warp_mel_axis


def test_a_ramp_tells_the_factor() -> None:
    torch.manual_seed(0)
    ramp = torch.arange(80.0).expand(200, 3, -1)
    warped = warp_mel_axis(ramp, 0.2)
    factor = warped[:, 0, 40] / 40  # bin 40 of the ramp shows which bin it was
    assert 0.8 <= factor.min() < 0.85 and 1.15 < factor.max() <= 1.2
    wanted = (torch.arange(80) * factor[:, None]).clamp(max=79).unsqueeze(1)
    torch.testing.assert_close(warped, wanted.expand_as(warped), atol=1e-3, rtol=0)


def test_no_amount_changes_nothing() -> None:
    mel = torch.randn(2, 5, 12)
    torch.testing.assert_close(warp_mel_axis(mel, 0.0), mel)
