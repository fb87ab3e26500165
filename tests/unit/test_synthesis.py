"""Operations on latents: an utterance's noise is its own, ends meet, files are named and listed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from audiovae.config import Config, FeatureConfig
from audiovae.errors import CheckpointError, ConfigError, DataDirError, FeatureMismatchError
from audiovae.jobs import Inputs, Job, Request, file_name, plan
from audiovae.models.vae import AudioVAE
from audiovae.rendering import (
    Origin,
    Output,
    OutputFolder,
    Renderer,
    read_manifest,
    read_origin,
)
from audiovae.synthesis import (
    Codes,
    decode,
    encode,
    interpolate,
    morph,
    reconstruct,
    sample,
    slerp,
    transfer,
    traverse,
    vocode,
)
from audiovae.vocoder.base import Vocoder


class _Level(Vocoder):
    """Renders the level of each frame, so that audio tells which mel it is of."""

    def _render(self, mel: torch.Tensor, frames: list[int]) -> torch.Tensor:
        wave = (mel.mean(2) / 20).repeat_interleave(self.feature.hop_length, dim=1)
        for row, n in enumerate(frames):
            wave[row, n * self.feature.hop_length :] = 0
        return wave


@pytest.fixture(scope="module")
def model(small_config: Callable[..., Config]) -> AudioVAE:
    torch.manual_seed(0)
    config = small_config()
    made = AudioVAE(config, np.full(config.feature.n_mels, -5.0), 2.0).eval()
    with torch.no_grad():
        made.prior.length.place.fill_(3.0)  # draws of about 20 slots
    return made


@pytest.fixture(scope="module")
def vocoder(model: AudioVAE) -> Vocoder:
    return _Level("level", model.feature)


@pytest.fixture(scope="module")
def mels() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([50, 33, 70])
    mel = -5 + 2 * torch.randn(3, 70, 80, generator=generator)
    return mel, lengths


@pytest.fixture(scope="module")
def codes(model: AudioVAE, mels: tuple[torch.Tensor, torch.Tensor]) -> Codes:
    return encode(model, *mels)


def test_an_utterance_alone_equals_itself_in_a_batch(model: AudioVAE, codes: Codes) -> None:
    together = decode(model, codes)
    for i in range(len(codes)):
        alone = decode(model, codes[i])
        n = int(alone.lengths[0])
        assert n == int(together.lengths[i])
        torch.testing.assert_close(alone.mel[0], together.mel[i, :n], atol=1e-5, rtol=0)


def test_a_drawn_posterior_does_not_depend_on_the_batch(
    model: AudioVAE, mels: tuple[torch.Tensor, torch.Tensor]
) -> None:
    mel, lengths = mels
    both = encode(model, mel, lengths, latent="sample", seeds=[7, 8, 9])
    one = encode(model, mel[1:2, :33], lengths[1:2], latent="sample", seeds=[8])
    torch.testing.assert_close(one.u[0], both[1].u[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(one.z[0], both.z[1], atol=1e-5, rtol=0)
    cold = encode(model, mel, lengths, latent="sample", temperature=0)
    torch.testing.assert_close(cold.z, encode(model, mel, lengths).z)


def test_reconstruct_is_seeded_and_speaks_for_as_long(
    model: AudioVAE, mels: tuple[torch.Tensor, torch.Tensor]
) -> None:
    first, again = reconstruct(model, *mels), reconstruct(model, *mels)
    other = reconstruct(model, *mels, seeds=1)
    assert torch.equal(first.mel, again.mel)
    assert not torch.equal(first.mel, other.mel)
    slot = model.config.frames_per_slot
    assert all(
        0 <= -(-t // slot) * slot - n < slot for t, n in zip(mels[1], first.lengths, strict=True)
    )
    fast = reconstruct(model, *mels, tempo=2.0)
    assert (fast.lengths <= first.lengths / 2 + model.config.decoder.reduction_factor).all()


def test_more_draws_extend_fewer(model: AudioVAE) -> None:
    few, many = sample(model, 2, seeds=3), sample(model, 5, seeds=3)
    for i in range(2):
        torch.testing.assert_close(few[i].u, many[i].u, atol=1e-5, rtol=0)
        assert few.seeds[i] == many.seeds[i]
    assert not torch.allclose(many.z[0], many.z[1])


def test_a_voice_gives_z_and_the_prior_the_rest(model: AudioVAE, codes: Codes) -> None:
    drawn = sample(model, 3, voice=codes, seeds=1)
    torch.testing.assert_close(drawn.z, codes.z.mean(0).expand(3, -1))
    assert not torch.allclose(drawn[0].u[0, 0], drawn[1].u[0, 0])


def test_the_cap_of_a_draw_is_told(model: AudioVAE) -> None:
    drawn = sample(model, 8, max_seconds=0.2)
    assert int(drawn.u_lengths.max()) == 2
    assert (drawn.hit_cap == (drawn.u_lengths == 2)).sum() >= 6


@pytest.mark.parametrize("mode", ["morph", "hold", "shared_noise"])
def test_interpolation_starts_at_one_and_ends_at_the_other(
    model: AudioVAE, codes: Codes, mode: str
) -> None:
    a, b = codes[0], codes[1]
    steps = interpolate(model, a, b, 5, mode=mode)  # type: ignore[arg-type]
    torch.testing.assert_close(steps.z[0], a.z[0])
    torch.testing.assert_close(steps.z[-1], b.z[0])
    assert set(steps.seeds) == set(a.seeds)
    if mode == "morph":
        assert torch.equal(steps[0].u, a.u)
        assert torch.equal(steps[4].u, b.u)
        assert steps.u_lengths.tolist() == sorted(steps.u_lengths.tolist(), reverse=True)
    elif mode == "hold":
        assert all(torch.equal(steps[i].u, a.u) for i in range(5))
    else:
        again = interpolate(model, a, codes[2], 5, mode="shared_noise")
        assert torch.equal(steps[0].u, again[0].u)  # the same noise, the same z


def test_slerp_stays_on_the_sphere_and_meets_a_formula() -> None:
    a, b = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
    for weight in (0.0, 0.25, 0.5, 1.0):
        angle = weight * np.pi / 2
        wanted = torch.tensor([np.cos(angle), np.sin(angle), 0.0], dtype=torch.float32)
        torch.testing.assert_close(slerp(a, b, weight), wanted, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(slerp(a, 3 * a, 0.5), 2 * a)  # parallel: the line
    assert slerp(a, -a, 0.5).isfinite().all()
    torch.testing.assert_close(slerp(torch.zeros(3), b, 0.5), b / 2)


def test_morph_stretches_in_time() -> None:
    ramp = torch.arange(5.0)[:, None]
    torch.testing.assert_close(morph(ramp, torch.linspace(0, 4, 9)[:, None], 0.5)[:, 0],
                               torch.linspace(0, 4, 7))  # fmt: skip
    assert morph(ramp[:1], ramp, 0.5).shape == (3, 1)


def test_transfer_keeps_the_words_and_takes_the_voice(codes: Codes) -> None:
    moved = transfer(codes[0], Codes.stack([codes[1], codes[2]]))
    assert torch.equal(moved.u, codes[0].u)
    torch.testing.assert_close(moved.z[0], codes.z[1:].mean(0))
    assert moved.seeds == codes[0].seeds


def test_traverse_moves_one_dimension(codes: Codes) -> None:
    moved = traverse(codes[0], 2, [-2.0, 0.0, 2.0])
    assert moved.z[:, 2].tolist() == [-2.0, 0.0, 2.0]
    torch.testing.assert_close(moved.z[:, [0, 1, 3]], codes.z[:1, [0, 1, 3]].expand(3, -1))
    with pytest.raises(ConfigError, match=r"found dim 4, wanted 0 to 3"):
        traverse(codes[0], 4, [0.0])


def test_vocode_gives_each_its_own_length(model: AudioVAE, codes: Codes, vocoder: Vocoder) -> None:
    decoded = decode(model, codes)
    waves = vocode(vocoder, decoded.mel, decoded.lengths)
    assert [len(w) for w in waves] == (decoded.lengths * 256).tolist()
    assert waves[0].dtype == np.float32


# ---- jobs and rendering -------------------------------------------------------------------------


class _Archive:
    """What Inputs reads of a FeatureArchive."""

    def __init__(self, mels: dict[str, np.ndarray], feature: FeatureConfig) -> None:
        self.path, self.mels, self.feature = Path("dump/test"), mels, feature
        self.utt_ids = sorted(mels)

    def __contains__(self, utt_id: str) -> bool:
        return utt_id in self.mels

    def __getitem__(self, utt_id: str) -> np.ndarray:
        return self.mels[utt_id]


@pytest.fixture
def inputs(model: AudioVAE, mels: tuple[torch.Tensor, torch.Tensor]) -> Inputs:
    rows = {f"anna-{i}/x": m[:t].numpy() for i, (m, t) in enumerate(zip(*mels, strict=True))}
    return Inputs(model, _Archive(rows, model.feature))  # type: ignore[arg-type]


def _folder(path: Path, model: AudioVAE, **options: bool) -> OutputFolder:
    origin = Origin(step=5, model_sha256="00", vocoder="level", feature=model.feature)
    return OutputFolder(path, origin, **options)


def _run(path: Path, source: Inputs, vocoder: Vocoder, operation: str, **told: object) -> list[str]:
    folder = _folder(path, source.model)
    renderer = Renderer(model=source.model, vocoder=vocoder, folder=folder, save_latents=True)
    jobs = plan(operation, source, Request(**told))  # type: ignore[arg-type]
    names = [rendered.line["file"] for rendered in renderer.render(jobs)]
    folder.finish()
    return names


def _digests(path: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in path.iterdir()}


TOLD: dict[str, dict[str, object]] = {
    "reconstruct": {},
    "sample": {"n": 3},
    "interpolate": {"inputs": ["anna-0/x", "anna-1/x"], "n": 3, "mode": "shared_noise"},
    "transfer": {"inputs": ["anna-0/x", "anna-1/x"]},
    "traverse": {"inputs": ["anna-2/x"], "n": 2, "dim": 1},
}


@pytest.mark.parametrize("operation", TOLD)
def test_the_same_seed_is_the_same_bytes(
    operation: str, inputs: Inputs, vocoder: Vocoder, tmp_path: Path
) -> None:
    names = _run(tmp_path / "a", inputs, vocoder, operation, **TOLD[operation])
    _run(tmp_path / "b", inputs, vocoder, operation, **TOLD[operation])
    assert _digests(tmp_path / "a") == _digests(tmp_path / "b")
    files = {p.name for p in (tmp_path / "a").iterdir()}
    assert files == {"manifest.jsonl", *names, *(n.replace(".wav", ".npz") for n in names)}


def test_the_bytes_do_not_depend_on_the_neighbours(
    inputs: Inputs, vocoder: Vocoder, tmp_path: Path
) -> None:
    _run(tmp_path / "all", inputs, vocoder, "reconstruct")
    (name,) = _run(tmp_path / "one", inputs, vocoder, "reconstruct", inputs=["anna-1/x"])
    assert _digests(tmp_path / "all")[name] == _digests(tmp_path / "one")[name]


def test_a_manifest_line_tells_where_an_output_comes_from(
    inputs: Inputs, vocoder: Vocoder, tmp_path: Path
) -> None:
    _run(tmp_path, inputs, vocoder, "sample", n=2, seed=4, max_seconds=0.2)
    line = read_manifest(tmp_path / "manifest.jsonl")[0]
    assert line == {
        "file": "sample.0000.wav", "operation": "sample", "inputs": [],
        "settings": {"z": "normal", "temperature": 1.0}, "seed": 4,
        "latents": "sample.0000.npz", "seconds": round(line["frames"] * 256 / 22050, 4),
        "frames": line["frames"], "clipped_samples": 0, "stop_reason": "prior_cap",
        "model_step": 5, "model_sha256": "00", "vocoder": "level",
        "feature_hash": inputs.model.feature.hash,
    }  # fmt: skip
    with np.load(tmp_path / "sample.0000.npz") as latents:
        assert latents["z"].shape == (4,)
        assert latents["u"].shape == (2, 3)


def test_a_rerun_replaces_its_own_and_leaves_the_rest(
    inputs: Inputs, vocoder: Vocoder, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    _run(tmp_path, inputs, vocoder, "transfer", **TOLD["transfer"])
    before = _digests(tmp_path)
    _run(tmp_path, inputs, vocoder, "sample", n=2)
    _run(tmp_path, inputs, vocoder, "sample", n=2)
    after = _digests(tmp_path)
    assert len(read_manifest(tmp_path / "manifest.jsonl")) == 3
    del before["manifest.jsonl"]
    assert before.items() <= after.items()


def test_clipping_is_reported_and_float_keeps_it(model: AudioVAE, tmp_path: Path) -> None:
    wave = np.array([0.0, 1.5, -2.0, 0.5], np.float32)
    output = Output(name="loud", operation="copy", wave=wave, frames=0)
    pcm, kept = _folder(tmp_path / "a", model), _folder(tmp_path / "b", model, float32=True)
    assert pcm.write(output)["clipped_samples"] == 2
    assert "2 samples in 1 files" in (pcm.clipping_report() or "")
    assert kept.write(output)["clipped_samples"] == 0
    assert kept.clipping_report() is None


def test_file_names_are_safe_and_one_to_one(tmp_path: Path) -> None:
    names = ["a/b", "a%2Fb", "../x", "a.b", "a b", "é", "CON:", "a\nb"]
    made = [file_name(name) for name in names]
    assert len(set(made)) == len(names)
    assert made[0] == "a%2Fb"
    assert all(set(m) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789%-_")
               for m in made)  # fmt: skip
    assert len(file_name("x" * 500)) == 200
    assert file_name("x" * 500) != file_name("x" * 501)


def test_two_outputs_of_one_name_are_refused(
    inputs: Inputs, vocoder: Vocoder, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="two outputs of this run have this name"):
        _run(tmp_path, inputs, vocoder, "reconstruct", inputs=["anna-0/x", "anna-0/x"])


def test_a_broken_manifest_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text('{"file": "a.wav"}\n[]\n')
    with pytest.raises(DataDirError, match=r"manifest\.jsonl:2: found '\[\]'"):
        read_manifest(tmp_path / "manifest.jsonl")


def test_a_batch_on_an_accelerator_is_split_back(
    inputs: Inputs, vocoder: Vocoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = _run(tmp_path / "a", inputs, vocoder, "reconstruct")
    groups: list[int] = []
    stack = Codes.stack
    monkeypatch.setattr("audiovae.rendering._groups", lambda jobs, size: iter([list(jobs)]))
    monkeypatch.setattr(Codes, "stack", lambda parts: groups.append(len(parts)) or stack(parts))
    together = _run(tmp_path / "b", inputs, vocoder, "reconstruct")
    assert together == alone
    assert groups == [3]
    key = [(line["file"], line["frames"]) for line in read_manifest(tmp_path / "a/manifest.jsonl")]
    assert key == [
        (line["file"], line["frames"]) for line in read_manifest(tmp_path / "b/manifest.jsonl")
    ]


@pytest.mark.parametrize(
    ("operation", "told", "message"),
    [
        ("transfer", {"inputs": ["anna-0/y"]}, "wanted 2 or more"),
        ("traverse", {"inputs": ["ana-0/x"]}, "no utt_id 'ana-0/x'; did you mean 'anna-0/x'"),
        ("interpolate", {"inputs": ["anna-0/x"]}, "found 1 inputs, wanted 2: --utt_id"),
        ("interpolate", {"inputs": ["anna-0/x", "anna-1/x"], "n": 1}, "wanted 2 or more steps"),
        ("remix", {}, "operation: found 'remix', wanted one of reconstruct, sample"),
    ],
)
def test_what_cannot_be_done_is_said(
    operation: str, told: dict[str, object], message: str, inputs: Inputs
) -> None:
    with pytest.raises((ConfigError, DataDirError), match=message):
        list(plan(operation, inputs, Request(**told)))  # type: ignore[arg-type]


def test_a_dump_of_another_contract_is_refused(model: AudioVAE) -> None:
    other = FeatureConfig(f_max=7600.0)
    with pytest.raises(FeatureMismatchError, match=r"f_max: 8000\.0 \| 7600\.0"):
        Inputs(model, _Archive({}, other))  # type: ignore[arg-type]


def test_a_wav_file_is_an_input_at_any_rate(
    model: AudioVAE, tmp_path: Path, vocoder: Vocoder
) -> None:
    import soundfile

    wave = 0.1 * np.sin(np.arange(48000) * 0.05).astype(np.float32)
    soundfile.write(tmp_path / "tone 1.wav", wave, 48000)
    inputs = Inputs(model)
    assert inputs.mel(tmp_path / "tone 1.wav").shape == (22050 // 256, 80)
    (name,) = _run(tmp_path / "out", inputs, vocoder, "reconstruct",
                   inputs=[tmp_path / "tone 1.wav"])  # fmt: skip
    assert name == "tone%201.reconstruct.wav"
    soundfile.write(tmp_path / "click.wav", wave[:300], 48000)
    with pytest.raises(DataDirError, match=r"click\.wav: 137 samples|click\.wav: 138 samples"):
        inputs.mel(tmp_path / "click.wav")
    with pytest.raises(ConfigError, match="utt_id 'x': in which dump"):
        inputs.mel("x")


def test_jobs_are_lazy(inputs: Inputs) -> None:
    jobs = plan("reconstruct", inputs, Request(inputs=["anna-0/x", "nobody"]))
    assert isinstance(next(jobs), Job)
    assert json.dumps(dict(next(plan("sample", inputs, Request())).settings))


@pytest.mark.parametrize("text", ["{", "[]", "{}"])
def test_a_damaged_checkpoint_manifest_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged"):
        read_origin(tmp_path, "griffin_lim", FeatureConfig())
