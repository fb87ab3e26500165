"""The whole model: a true bound, gradients everywhere, lengths, folders that load or say why."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributions import Bernoulli, Laplace, Normal, kl_divergence

from audiovae.config import Config
from audiovae.errors import CheckpointError
from audiovae.models.masking import length_mask
from audiovae.models.posterior import Gaussian
from audiovae.models.vae import AudioVAE
from audiovae.training.losses import Objective

SmallConfig = Callable[..., Config]
LENGTHS = torch.tensor([50, 7, 33])
FEW_BINS = ["feature.n_mels=12"]


def build(config: Config, seed: int = 0) -> AudioVAE:
    torch.manual_seed(seed)
    n_mels = config.feature.n_mels
    return AudioVAE(config, np.linspace(-6, -3, n_mels), 2.0).eval()


@pytest.fixture(scope="module")
def mel() -> torch.Tensor:
    return -5 + 2 * torch.randn(3, 50, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posterior means instead of draws: noise of a batch depends on its shape."""
    monkeypatch.setattr(Gaussian, "sample", lambda self, noise: self.mean)


@pytest.mark.parametrize("mixtures", [1, 3])
def test_gradients_reach_every_parameter(
    mixtures: int, small_config: SmallConfig, mel: torch.Tensor
) -> None:
    config = small_config(
        *FEW_BINS, f"latent.prior_mixtures={mixtures}", "latent.u_adversary=1", "latent.u_stride=2"
    )
    model, objective = build(config).train(), Objective(config)
    loss, _ = objective(model(mel, LENGTHS), step=10)
    loss.backward()
    for module in (model, objective):
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().sum() > 0, name


@torch.no_grad()
def test_the_bound_is_made_of_its_parts(small_config: SmallConfig, mel: torch.Tensor) -> None:
    """Each part against torch.distributions, from the same draws."""
    model = build(small_config(*FEW_BINS, "decoder.prenet_dropout=0"))
    with torch.no_grad():
        model.log_scale.copy_(torch.linspace(-0.05, 0.05, 12))
    torch.manual_seed(5)
    terms = model(mel, LENGTHS)
    total = terms.reconstruction + terms.end + terms.kl_z.sum(1) + terms.kl_u.sum(1) + terms.length
    torch.testing.assert_close(terms.negative_elbo, total)
    latents = model.encode(mel, LENGTHS)
    q_z = Normal(latents.z_mean, latents.z_std)
    torch.testing.assert_close(
        terms.kl_z, kl_divergence(q_z, Normal(0.0, 1.0)), atol=1e-5, rtol=1e-5
    )
    torch.manual_seed(5)
    z = latents.z_mean + latents.z_std * torch.randn_like(latents.z_mean)
    u = latents.u_mean + latents.u_std * torch.randn_like(latents.u_mean)
    torch.testing.assert_close(terms.u, u)
    x = (mel - model.mel_mean) / model.mel_scale * length_mask(LENGTHS).unsqueeze(-1)
    shift, scale = model.adaptive_norm(z)
    out = model.decoder((x - shift) / scale, LENGTHS, model.memory(u, z), latents.u_lengths, z)
    for n, length in enumerate(LENGTHS.tolist()):
        p = Laplace(shift[n] + scale[n] * out.frames[n, :length], model.likelihood_log_scale.exp())
        nats = -p.log_prob(x[n, :length]).sum()
        torch.testing.assert_close(terms.reconstruction[n], nats, rtol=1e-5, atol=1e-3)
        steps = math.ceil(length / 4)
        last = torch.eye(steps)[-1]
        end = -Bernoulli(logits=out.end[n, :steps]).log_prob(last).sum()
        torch.testing.assert_close(terms.end[n], end, rtol=1e-5, atol=1e-5)
    given = model.teacher_forced_nats(mel, LENGTHS, z, u, latents.u_lengths)
    torch.testing.assert_close(given, terms.reconstruction, rtol=1e-5, atol=1e-3)


@torch.no_grad()
@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("reduction", [1, 2, 3, 5])
def test_each_utterances_bound_is_its_own(
    reduction: int, small_config: SmallConfig, mel: torch.Tensor
) -> None:
    """Twice the batch, another padding, or no batch at all: the same nats for each."""
    model = build(small_config(
        *FEW_BINS, "decoder.prenet_dropout=0", f"decoder.reduction_factor={reduction}",
        "latent.u_stride=2",
    ))  # fmt: skip
    terms = model(mel, LENGTHS)
    doubled = model(torch.cat([mel, mel]), torch.cat([LENGTHS, LENGTHS]))
    padded = model(torch.nn.functional.pad(mel, (0, 0, 0, 9), value=99.0), LENGTHS)
    for name in ("reconstruction", "end", "length", "negative_elbo"):
        wanted = getattr(terms, name)
        torch.testing.assert_close(getattr(doubled, name), wanted.repeat(2), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(getattr(padded, name), wanted, rtol=1e-5, atol=1e-4)
        for n, length in enumerate(LENGTHS.tolist()):
            alone = getattr(model(mel[n : n + 1, :length], LENGTHS[n : n + 1]), name)
            torch.testing.assert_close(alone, wanted[n : n + 1], rtol=1e-5, atol=1e-4)
    assert doubled.frames.tolist() == [*LENGTHS.tolist()] * 2


@torch.no_grad()
def test_z_cannot_hide_in_u(small_config: SmallConfig, mel: torch.Tensor) -> None:
    """The level of each bin over the utterance, where the voice is, stays out of u."""
    model = build(small_config(*FEW_BINS))
    other = 1.3 * mel + torch.linspace(-1, 1, 12)
    here, there = model.encode(mel, LENGTHS), model.encode(other, LENGTHS)
    for n, k in enumerate(here.u_lengths.tolist()):
        torch.testing.assert_close(here.u_mean[n, :k], there.u_mean[n, :k], atol=1e-4, rtol=0)
    assert ((here.z_mean - there.z_mean).abs().amax(1) > 1e-2).all()
    raw = build(small_config(*FEW_BINS, "latent.instance_norm=false"))
    moved = raw.encode(mel, LENGTHS).u_mean - raw.encode(other, LENGTHS).u_mean
    assert moved[0].abs().max() > 1e-2


@torch.no_grad()
def test_z_gives_back_the_level_of_each_bin(small_config: SmallConfig, mel: torch.Tensor) -> None:
    """The decoder neither sees nor makes it: the same numbers before it is put on."""
    model = build(small_config(*FEW_BINS, "decoder.prenet_dropout=0"))
    latents = model.encode(mel, LENGTHS)
    z, u = latents.sample(0.0)
    decoded = model.decode(z, u, latents.u_lengths)
    model.adaptive_norm.out.weight.zero_()
    shift = torch.linspace(-1, 1, 12)
    model.adaptive_norm.out.bias.copy_(torch.cat([shift, torch.full((12,), 0.3)]))
    plain = build(small_config(*FEW_BINS, "decoder.prenet_dropout=0", "latent.adaptive_norm=false"))
    plain.load_state_dict(
        {k: v for k, v in model.state_dict().items() if not k.startswith("adaptive_norm")}
    )
    scale = model.adaptive_norm(z)[1][0, 0]
    torch.testing.assert_close(scale.log(), torch.full((12,), 0.3), atol=0.01, rtol=0)
    moved, still = (m.decode(z, u, latents.u_lengths) for m in (model, plain))
    assert (moved.mel - decoded.mel).abs().max() > 0.1
    for n, length in enumerate(moved.lengths.tolist()):
        y = (still.mel[n, :length] - model.mel_mean) / model.mel_scale
        wanted = (shift + scale * y) * model.mel_scale + model.mel_mean
        torch.testing.assert_close(moved.mel[n, :length], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("reduction", [1, 2, 3, 4, 5])
def test_length_follows_from_k_and_the_end_flag_only_trims(
    reduction: int, stride: int, small_config: SmallConfig
) -> None:
    model = build(small_config(
        *FEW_BINS, f"decoder.reduction_factor={reduction}", f"latent.u_stride={stride}"
    ))  # fmt: skip
    slot = 4 * stride
    u_lengths = torch.tensor([9, 1, 4])
    z, u = torch.randn(3, 4), torch.randn(3, 9, 3)

    def lengths(bias: float, tempo: float = 1.0) -> list[int]:
        with torch.no_grad():
            model.decoder.end_out.weight.zero_()
            model.decoder.end_out.bias.fill_(bias)
        out = model.decode(z, u, u_lengths, tempo=tempo)
        size = int(out.lengths.max())
        assert out.mel.shape == (3, size, 12) and out.mel.isfinite().all()
        padding = ~length_mask(out.lengths, size)
        assert (out.mel[padding] == math.log(model.feature.floor)).all()
        assert out.align_lengths.tolist() == [math.ceil(n / reduction) for n in out.lengths]
        assert out.alignment.shape == (3, int(out.align_lengths.max()), 9)
        return list(out.lengths.tolist())

    whole = [slot * k for k in u_lengths.tolist()]
    assert lengths(-100) == whole
    for trimmed, full in zip(lengths(100), whole, strict=True):
        assert full - slot < trimmed <= full
        # the first group that begins in the last slot ends it
        assert trimmed == min(full, reduction * (math.ceil((full - slot) / reduction) + 1))
    assert lengths(-100, tempo=2.0) == [math.ceil(n / 2) for n in whole]


def test_samples_are_seeded_and_as_long_as_their_u(small_config: SmallConfig) -> None:
    model = build(small_config(*FEW_BINS))
    with torch.no_grad():
        model.prior.length.place.fill_(2.0)

    def draw(seed: int) -> torch.Tensor:
        return model.sample(4, max_seconds=0.5, generator=torch.Generator().manual_seed(seed)).mel

    first = draw(0)
    assert torch.equal(first, draw(0))
    assert first.shape != draw(1).shape or not torch.equal(first, draw(1))
    z = model.sample_z(4, generator=torch.Generator().manual_seed(0))
    drawn = model.sample_prior(z, max_seconds=0.5, generator=torch.Generator().manual_seed(1))
    cap = int(0.5 * 22050 / 256 / 8)  # u_stride 2: eight frames a slot
    assert drawn.u_lengths.max() <= cap and ((drawn.u_lengths == cap) | ~drawn.hit_cap).all()


def test_the_fitted_prior_is_a_mixture(small_config: SmallConfig) -> None:
    model = build(small_config(*FEW_BINS))
    with pytest.raises(CheckpointError, match="no fitted prior"):
        model.sample_z(2, prior="fitted")
    with torch.no_grad():
        model.fitted_log_weight.fill_(-torch.inf)
        model.fitted_log_weight[:2] = torch.tensor([0.25, 0.75]).log()
        model.fitted_mean[1] = 10.0
        model.fitted_std.fill_(0.1)
    z = model.sample_z(4000, prior="fitted", generator=torch.Generator().manual_seed(0))
    second = z.mean(1) > 5
    assert second.float().mean().item() == pytest.approx(0.75, abs=0.03)
    assert z[second].mean().item() == pytest.approx(10, abs=0.01)
    assert z[~second].std().item() == pytest.approx(0.1, abs=0.01)
    own = [torch.Generator().manual_seed(n) for n in range(3)]
    again = [torch.Generator().manual_seed(2)]
    together = model.sample_z(3, prior="fitted", generator=own)
    torch.testing.assert_close(together[2:], model.sample_z(1, prior="fitted", generator=again))


def test_one_utterance_can_be_learned(small_config: SmallConfig) -> None:
    config = small_config(
        *FEW_BINS, "encoder.dropout=0", "latent.warp=0", "decoder.prenet_dropout=0.2",
        "decoder.frame_dropout=0", "decoder.decoder_rnn_dim=32", "latent.u_dim=8",
    )  # fmt: skip
    model, objective = build(config).train(), Objective(config)
    time, bins = torch.arange(48)[:, None], torch.arange(12)
    mel = (-5 + 3 * torch.sin(time / 4 + bins / 2))[None].float()
    lengths = torch.tensor([48])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(120):
        torch.manual_seed(step)
        loss, parts = objective(model(mel, lengths), step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(parts["negative_elbo"])
    assert losses[0] > 20 and losses[-1] < 0.3 * losses[0]
    model.eval()
    latents = model.encode(mel, lengths)
    decoded = model.decode(latents.z_mean, latents.u_mean, latents.u_lengths)
    assert decoded.lengths.tolist() == [48]
    blind = (mel - mel.mean(1, keepdim=True)).abs().mean()
    assert (decoded.mel - mel).abs().mean() < 0.5 * blind


# ---- model folders ------------------------------------------------------------------------------


@pytest.fixture
def folder(small_config: SmallConfig, tmp_path: Path) -> Path:
    model = build(small_config(*FEW_BINS))
    model.save_pretrained(tmp_path / "a model")
    return tmp_path / "a model"


def test_what_is_saved_is_what_loads_to_the_byte(
    folder: Path, small_config: SmallConfig, mel: torch.Tensor, tmp_path: Path
) -> None:
    model, loaded = build(small_config(*FEW_BINS)), AudioVAE.from_pretrained(folder)
    assert not loaded.training and loaded.config == model.config
    loaded.save_pretrained(tmp_path / "again")
    names = {"config.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == names
    for name in names:
        assert (folder / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    mine, theirs = model.encode(mel, LENGTHS), loaded.encode(mel, LENGTHS)
    assert torch.equal(mine.u_mean, theirs.u_mean) and torch.equal(mine.z_std, theirs.z_std)
    decoded = [
        m.decode(mine.z_mean, mine.u_mean, mine.u_lengths,
                 generator=torch.Generator().manual_seed(0)).mel
        for m in (model, loaded)
    ]  # fmt: skip
    assert torch.equal(*decoded)
    assert torch.equal(loaded.mel_mean, torch.linspace(-6, -3, 12)) and loaded.mel_scale == 2


def spoil_config(folder: Path, **changes: object) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))


@pytest.mark.parametrize("found", [1, None, "2"])
def test_another_format_is_refused(found: object, folder: Path) -> None:
    spoil_config(folder, format=found)
    with pytest.raises(CheckpointError, match=rf"config\.json: format {found!r}, wanted 2"):
        AudioVAE.from_pretrained(folder)


def test_all_faults_of_the_weights_come_together(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["decoder.extra"] = torch.zeros(1)
    tensors["mel_mean"] = torch.zeros(13)
    tensors["log_scale"][3] = torch.nan
    del tensors["prior.gru.bias_ih_l0"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        AudioVAE.from_pretrained(folder)
    for wanted in (
        "missing prior.gru.bias_ih_l0", "unknown decoder.extra", "mel_mean: (13,), wanted (12,)",
        "log_scale: not finite", "model.safetensors",
    ):  # fmt: skip
        assert wanted in str(caught.value)


def test_damage_and_absence_are_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged"):
        AudioVAE.from_pretrained(folder)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        AudioVAE.from_pretrained(folder)
    (folder / "config.json").write_text("{")
    weights.write_bytes(whole)
    with pytest.raises(CheckpointError, match=r"config\.json: not readable as JSON"):
        AudioVAE.from_pretrained(folder)


def test_the_hub_offline_says_what_to_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match=r"hf download someone/a-model --revision v1"):
        AudioVAE.from_pretrained("someone/a-model", revision="v1")
    with pytest.raises(CheckpointError, match="no such folder, and not a hub id"):
        AudioVAE.from_pretrained(tmp_path / "none")
