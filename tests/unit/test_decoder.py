"""The decoder: the fast recurrence against plain loops, in values and in every gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from audiovae.config import DecoderConfig
from audiovae.models.attention import Windows
from audiovae.models.decoder import Decoder, Frames
from audiovae.models.masking import length_mask
from audiovae.models.recurrence import _Recurrence

MELS, Z, MEMORY = 5, 3, 6
REDUCTIONS = [1, 2, 3, 5]


def small(reduction: int, *, slot: int = 4, **changes: object) -> Decoder:
    """Tiny and seeded; a memory slot stands for `slot` frames."""
    torch.manual_seed(0)
    widths: dict[str, object] = {
        "memory_dim": MEMORY, "prenet_dim": 8, "attention_rnn_dim": 7, "decoder_rnn_dim": 9,
        "attention_dim": 5, "location_filters": 3, "location_kernel": 5,
    }  # fmt: skip
    config = DecoderConfig(reduction_factor=reduction, **{**widths, **changes})
    decoder = Decoder(MELS, Z, config, reduction / slot)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.mul_(1.5)  # what feeds back should matter
    return decoder


@dataclass
class Given:
    """Uneven utterances: frames (B, T, M), lengths, memory (B, K, D), slots, z (B, Z)."""

    frames: torch.Tensor
    lengths: torch.Tensor
    memory: torch.Tensor
    slots: torch.Tensor
    z: torch.Tensor

    def row(self, n: int) -> Given:
        length, slots = int(self.lengths[n]), int(self.slots[n])
        part = slice(n, n + 1)
        return Given(self.frames[part, :length], self.lengths[part], self.memory[part, :slots],
                     self.slots[part], self.z[part])  # fmt: skip

    def steps(self, reduction: int) -> torch.Tensor:
        return -(-self.lengths // reduction)


def uneven(slot: int = 4) -> Given:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([23, 1, 14, 20])
    slots = -(-lengths // slot)
    return Given(
        torch.randn(4, 23, MELS, generator=generator), lengths,
        torch.randn(4, int(slots.max()), MEMORY, generator=generator), slots,
        torch.randn(4, Z, generator=generator),
    )  # fmt: skip


def own_generators(rows: list[int]) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(50 + row) for row in rows]


def each_own(given: Given) -> list[torch.Generator]:
    return own_generators(list(range(len(given.lengths))))


def fast(decoder: Decoder, given: Given) -> Frames:
    torch.manual_seed(3)  # of the dropped frames
    return decoder(given.frames, given.lengths, given.memory, given.slots, given.z,
                   generator=each_own(given))  # fmt: skip


def slow(decoder: Decoder, given: Given) -> Frames:
    torch.manual_seed(3)
    return decoder.step_by_step(given.steps(decoder.reduction), given.memory, given.slots, given.z,
                                given.frames, generator=each_own(given))  # fmt: skip


def gradients(
    run: Callable[[Decoder, Given], Frames], decoder: Decoder, given: Given
) -> dict[str, torch.Tensor]:
    """Of a random weighing of all outputs, for each parameter and each input."""
    leaves = {
        "frames": given.frames.clone().requires_grad_(),
        "memory": given.memory.clone().requires_grad_(),
        "z": given.z.clone().requires_grad_(),
    }
    own = Given(leaves["frames"], given.lengths, leaves["memory"], given.slots, leaves["z"])
    decoder.zero_grad()
    out = run(decoder, own)
    generator = torch.Generator().manual_seed(9)
    loss = sum((x * torch.randn(x.shape, generator=generator)).sum() for x in (out.frames, out.end))
    loss.backward()
    named = {**dict(decoder.named_parameters()), **leaves}
    return {name: t.grad.clone() for name, t in named.items() if t.grad is not None}


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_fast_is_step_by_step(reduction: int, training: bool) -> None:
    decoder, given = small(reduction).train(training), uneven()
    found, wanted = fast(decoder, given), slow(decoder, given)
    count = -(-23 // reduction)
    assert found.frames.shape == (4, count * reduction, MELS)
    assert found.end.shape == (4, count)
    assert found.alignment.shape == (4, count, int(given.slots.max()))
    for name in ("frames", "end", "alignment"):
        torch.testing.assert_close(
            getattr(found, name), getattr(wanted, name), atol=1e-5, rtol=1e-5
        )
    of_fast, of_slow = gradients(fast, decoder, given), gradients(slow, decoder, given)
    assert of_fast.keys() == of_slow.keys() >= dict(decoder.named_parameters()).keys()
    for name, gradient in of_slow.items():
        size = float(gradient.abs().max())
        assert size > 0, name
        error = float((of_fast[name] - gradient).abs().max())
        assert error <= 1e-5 * max(1.0, size), (name, error, size)


@pytest.mark.parametrize("changes", [{"rate_bias": False}, {"location_kernel": 1}])
def test_fast_is_step_by_step_without_aids(changes: dict[str, object]) -> None:
    decoder, given = small(2, **changes).eval(), uneven()
    torch.testing.assert_close(
        fast(decoder, given).frames, slow(decoder, given).frames, atol=1e-5, rtol=1e-5
    )


def test_windows_leave_out_only_what_has_no_weight() -> None:
    """Far slots are skipped in training; alignment, frames and gradients stay the same."""
    decoder = small(2, rate_bias_slots=0.4).eval()
    generator = torch.Generator().manual_seed(1)
    lengths, slots = torch.tensor([120, 64]), torch.tensor([30, 16])
    given = Given(
        torch.randn(2, 120, MELS, generator=generator), lengths,
        torch.randn(2, 30, MEMORY, generator=generator), slots,
        torch.randn(2, Z, generator=generator),
    )  # fmt: skip
    windows = decoder.attention.windows(60, 30)
    assert windows.size < 20 and windows.first[0] == 0 and windows.first[-1] == 30 - windows.size

    def run(do: Callable[[Decoder, Given], Frames]) -> tuple[Frames, dict[str, torch.Tensor]]:
        def real(d: Decoder, g: Given) -> Frames:  # what follows an utterance's end is not defined
            out = do(d, g)
            mask = length_mask(g.steps(2), 60)
            of_frames = mask.repeat_interleave(2, 1).unsqueeze(-1)
            return Frames(out.frames * of_frames, out.end * mask, out.alignment * mask[..., None])

        return real(decoder, given), gradients(real, decoder, given)

    (found, of_fast), (wanted, of_slow) = run(fast), run(slow)
    for name in ("frames", "end", "alignment"):
        torch.testing.assert_close(
            getattr(found, name), getattr(wanted, name), atol=1e-5, rtol=1e-5
        )
    for name, gradient in of_slow.items():
        error = float((of_fast[name] - gradient).abs().max())
        assert error <= 1e-5 * max(1.0, float(gradient.abs().max())), name


@pytest.mark.parametrize("windows", [Windows([0] * 4, 3), Windows([0, 0, 1, 1], 2)])
def test_the_recurrence_has_the_gradient_of_what_it_computes(windows: Windows) -> None:
    """Finite differences in float64, every input."""
    steps, batch, slots, width, dim, attention, kernel = 4, 2, 3, 3, 2, 3, 3
    generator = torch.Generator().manual_seed(4)
    shapes = [
        (steps, batch, 4 * width), (batch, slots, attention), (batch, slots, dim), (steps, slots),
        (batch, width), (batch, width), (4 * width, dim + width), (attention, width),
        (attention, 2 * kernel), (attention,),
    ]  # fmt: skip
    inputs = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    mask = length_mask(torch.tensor([3, 2]))
    masked = torch.zeros(batch, slots, dtype=torch.float64).masked_fill(~mask, -torch.inf)

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, context, _ = _Recurrence.apply(windows, *values[:4], masked, *values[4:])
        return hidden, context

    assert torch.autograd.gradcheck(run, inputs, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def paper_decoder(decoder: Decoder, given: Given, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Free running of one utterance, written out from the equations: frames, end logits."""
    weight = {name: value.double() for name, value in decoder.named_parameters()}
    memory, z = given.memory[0].double(), given.z[0].double()
    drawn = torch.rand(steps, 12, generator=own_generators([0])[0]).double()

    def lstm(x: torch.Tensor, h: torch.Tensor, c: torch.Tensor, name: str, layer: str = ""):  # type: ignore[no-untyped-def]
        gates = weight[f"{name}.weight_ih{layer}"] @ x + weight[f"{name}.bias_ih{layer}"]
        gates += weight[f"{name}.weight_hh{layer}"] @ h + weight[f"{name}.bias_hh{layer}"]
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def start(name: str) -> tuple[torch.Tensor, torch.Tensor]:
        hidden, cell = (weight[f"{name}.weight"] @ z + weight[f"{name}.bias"]).tanh().chunk(2)
        return hidden, cell

    (s, s_cell), (o, o_cell) = start("attention_init"), start("decoder_init")
    last, context = torch.zeros(MELS).double(), torch.zeros(MEMORY).double()
    previous = total = torch.zeros(len(memory)).double()
    frames, ends = [], []
    for i in range(steps):
        p, keep = last, (drawn[i] >= decoder.prenet.dropout) / (1 - decoder.prenet.dropout)
        for n, mask in enumerate((keep[:8], keep[8:])):
            layer = f"prenet.layers.{n}"
            p = (weight[f"{layer}.weight"] @ p + weight[f"{layer}.bias"]).relu() * mask
        s, s_cell = lstm(torch.cat([p, context, z]), s, s_cell, "attention_rnn")
        seen = F.conv1d(torch.stack([previous, total])[None],
                        weight["attention.location_conv.weight"], padding=2)[0].T  # fmt: skip
        energy = memory @ weight["attention.key.weight"].T + weight["attention.key.bias"]
        energy = energy + weight["attention.query.weight"] @ s
        energy = (energy + seen @ weight["attention.location.weight"].T).tanh()
        away = torch.arange(len(memory)) + 0.5 - (i + 0.5) * decoder.reduction / 4
        bias = away**2 / (2 * weight["attention.log_slots"].exp() ** 2)
        previous = (energy @ weight["attention.score.weight"][0] - bias).softmax(0)
        total = total + previous
        context = previous @ memory
        o, o_cell = lstm(torch.cat([s, context, z]), o, o_cell, "decoder_rnn", "_l0")
        joined = torch.cat([o, context, z])
        mean = weight["frame_out.weight"] @ joined + weight["frame_out.bias"]
        frames.append(mean.view(-1, MELS))
        last = frames[-1][-1]
        ends.append(weight["end_out.weight"][0] @ joined + weight["end_out.bias"][0])
    return torch.cat(frames).float(), torch.stack(ends).float()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_free_running_is_the_equations(reduction: int) -> None:
    decoder, given = small(reduction).eval(), uneven().row(0)
    steps = given.steps(reduction)
    out = decoder.generate(steps, given.memory, given.slots, given.z, generator=own_generators([0]))
    frames, end = paper_decoder(decoder, given, int(steps))
    torch.testing.assert_close(out.frames[0], frames, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(out.end[0], end, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_teacher_forced_on_its_own_frames_is_free_running(reduction: int) -> None:
    decoder, given = small(reduction).eval(), uneven()
    steps = given.steps(reduction)
    free = decoder.generate(
        steps, given.memory, given.slots, given.z, generator=own_generators([0, 1, 2, 3])
    )
    forced = decoder(free.frames, steps * reduction, given.memory, given.slots, given.z,
                     generator=each_own(given))  # fmt: skip
    torch.testing.assert_close(forced.frames, free.frames, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(forced.alignment, free.alignment, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_utterance_alone_is_itself_in_a_ragged_batch(reduction: int) -> None:
    decoder, given = small(reduction).eval(), uneven()
    steps = given.steps(reduction)
    forced = fast(decoder, given)
    free = decoder.generate(
        steps, given.memory, given.slots, given.z, generator=own_generators([0, 1, 2, 3])
    )
    for n in range(4):
        one, count, slots = given.row(n), int(steps[n]), int(given.slots[n])
        alone = {
            "forced": decoder(one.frames, one.lengths, one.memory, one.slots, one.z,
                              generator=own_generators([n])),
            "free": decoder.generate(steps[n : n + 1], one.memory, one.slots, one.z,
                                     generator=own_generators([n])),
        }  # fmt: skip
        for name, together in (("forced", forced), ("free", free)):
            out = alone[name]
            assert out.frames.shape == (1, count * reduction, MELS)
            for found, wanted in (
                (together.frames[n, : count * reduction], out.frames[0]),
                (together.end[n, :count], out.end[0]),
                (together.alignment[n, :count, :slots], out.alignment[0]),
            ):
                torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@torch.no_grad()
def test_what_is_fed_back_is_the_last_frame_of_the_group_before() -> None:
    decoder, given = small(3, prenet_dropout=0.0).eval(), uneven()
    before = fast(decoder, given).frames
    given.frames[:, 5] += 3  # the last of the second group
    after = fast(decoder, given).frames
    torch.testing.assert_close(after[:, :6], before[:, :6], atol=0, rtol=0)
    assert (after[0, 6:] - before[0, 6:]).abs().max() > 1e-3
    given.frames[:, 6:8] += 3  # no group ends there
    torch.testing.assert_close(fast(decoder, given).frames, after, atol=0, rtol=0)


@torch.no_grad()
def test_both_latents_are_heard() -> None:
    decoder, given = small(2).eval(), uneven()
    before = fast(decoder, given)
    other_z = Given(given.frames, given.lengths, given.memory, given.slots, given.z.roll(1, 0))
    other_memory = Given(given.frames, given.lengths, given.memory.roll(1, 0), given.slots, given.z)
    for other in (other_z, other_memory):
        moved = (fast(decoder, other).frames - before.frames).abs().amax((1, 2))
        assert (moved > 0.05).all()
    assert not torch.equal(fast(decoder, other_z).alignment, before.alignment)


@torch.no_grad()
def test_tempo_passes_the_memory_faster() -> None:
    decoder, given = small(4, rate_bias_slots=0.3).eval(), uneven().row(0)

    def generate(steps: int, tempo: float) -> torch.Tensor:
        out = decoder.generate(torch.tensor([steps]), given.memory, given.slots, given.z,
                               tempo=tempo, generator=own_generators([0]))  # fmt: skip
        return out.alignment[0].argmax(1)

    assert generate(6, 1.0).tolist() == [0, 1, 2, 3, 4, 5]
    assert generate(3, 2.0).tolist() in ([0, 2, 4], [1, 3, 5], [0, 3, 5], [1, 3, 4], [0, 2, 5])
    assert generate(12, 0.5).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
