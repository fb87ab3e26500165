"""The demonstration: every operation on a few held-out utterances, with plots and a page to listen.

Each output stands beside the originals and their copy synthesis (the real mel through the vocoder),
so that one hears what the vocoder costs and what the model costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audiovae.analysis import plots
from audiovae.analysis.page import Clip, Row, Section, write_page
from audiovae.data.archive import FeatureArchive
from audiovae.data.atomic import atomic_path
from audiovae.data.kaldi_dir import DataDir
from audiovae.errors import ConfigError
from audiovae.jobs import Inputs, Request, file_name, plan
from audiovae.rendering import Output, Rendered, Renderer
from audiovae.synthesis import item_seed, vocode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UTTERANCES, _DRAWS, _STEPS = 3, 4, 5
_SECONDS = (1.0, 5.0)  # long enough to judge, short enough to hear all
_SCATTERED = 200  # utterances whose z is plotted


def demonstrate(inputs: Inputs, renderer: Renderer, request: Request) -> Path:
    """Make all outputs and plots into the renderer's folder; the page that shows them.

    Args:
        inputs: with an archive, whose folder is a data dir of the same utterances.
        request: n utterances (3), seed and temperatures; what its operations are told.

    Raises:
        ConfigError: no archive.
        DataDirError: too few utterances, or audio that cannot be read.
    """
    archive = inputs.archive
    if archive is None:
        raise ConfigError("demo: on which utterances? Give --dump and --set")
    chosen = choose(archive, request.n or _UTTERANCES, request.seed)
    request = replace(request, n=None)
    demo = _Demo(inputs, renderer, request, _real(archive, renderer, chosen))
    return write_page(
        renderer.folder.path / "index.html",
        f"audiovae: {archive.path.name} set, step {renderer.folder.origin.step}",
        [
            demo.reconstructions(),
            demo.samples(),
            demo.interpolation(),
            demo.transfers(),
            demo.traversal(),
        ],
    )


def choose(archive: FeatureArchive, n: int, seed: int) -> list[str]:
    """n utterances at random, one voice after the other, of 1 to 5 s where there are enough.

    Raises:
        ConfigError: fewer than 2 to choose, or none there are.
    """
    low, high = (s * archive.feature.frame_rate for s in _SECONDS)
    order = sorted(
        archive.utt_ids,
        key=lambda u: (not low <= archive.num_frames[u] <= high, item_seed(seed, u)),
    )
    turns: dict[str, int] = {}
    ranked = []
    for place, utt_id in enumerate(order):
        speaker = archive.utt2spk.get(utt_id, "")
        turns[speaker] = turns.get(speaker, 0) + 1
        ranked.append((turns[speaker], place, utt_id))
    chosen = [utt_id for _, _, utt_id in sorted(ranked)[:n]]
    if len(chosen) < 2:
        raise ConfigError(f"demo: found {len(chosen)} utterances in {archive.path}, wanted 2")
    return chosen


@dataclass(frozen=True)
class _Real:
    """An utterance as it was: its mel, and the clips of the original and the copy synthesis."""

    mel: np.ndarray
    original: Clip
    copy: Clip


def _real(archive: FeatureArchive, renderer: Renderer, utt_ids: Sequence[str]) -> dict[str, _Real]:
    feature, folder = archive.feature, renderer.folder
    data = DataDir.read(archive.path)
    found = {}
    for utt_id in utt_ids:
        mel = archive[utt_id]
        wave = data.wave(utt_id, feature.sample_rate)[: len(mel) * feature.hop_length]
        batch = torch.from_numpy(mel)[None].to(renderer.model.device)
        copy = vocode(renderer.vocoder, batch, torch.tensor([len(mel)]))[0]
        for kind, audio in (("original", wave), ("copy", copy)):
            folder.write(
                Output(
                    name=file_name(utt_id, kind), operation=kind, wave=audio, frames=len(mel),
                    inputs=[utt_id], by_model=False, by_vocoder=kind == "copy",
                )
            )  # fmt: skip
        found[utt_id] = _Real(
            mel,
            Clip("original", file_name(utt_id, "original") + ".wav"),
            Clip("copy synthesis", file_name(utt_id, "copy") + ".wav"),
        )
    return found


class _Demo:
    """One method a section of the page; each makes its outputs."""

    def __init__(
        self, inputs: Inputs, renderer: Renderer, request: Request, real: Mapping[str, _Real]
    ) -> None:
        self.inputs = inputs
        self.renderer = renderer
        self.request = request
        self.real = real
        self.config = inputs.model.config

    def reconstructions(self) -> Section:
        rows = []
        for made in self._make("reconstruct", inputs=[*self.real]):
            utt_id = made.job.inputs[0]
            real = self.real[utt_id]
            figures = [
                self._mels(made, real.mel, made.mel, ("original", "reconstruction")),
                self._save(
                    f"{made.job.name}.alignment",
                    plots.alignment(made.alignment, self.config.slots_per_step),
                ),
            ]
            clips = [real.original, real.copy, Clip("reconstruction", made.line["file"])]
            rows.append(Row(utt_id, clips, figures))
        return Section("Reconstructions of held-out utterances", rows)

    def samples(self) -> Section:
        draws = list(self._make("sample", n=_DRAWS))
        clips = [Clip(f"draw {i}", made.line["file"]) for i, made in enumerate(draws, 1)]
        figure = self._mels(draws[0], draws[0].mel, draws[1].mel, ("draw 1", "draw 2"))
        rows = [Row(f"z from the {self.request.prior} prior", clips, [figure])]
        for utt_id, real in self.real.items():
            (made,) = self._make("sample", n=1, voices=[utt_id])
            clips = [real.original, Clip("new words in this voice", made.line["file"])]
            rows.append(Row(f"z of {utt_id}", clips))
        return Section("Samples from the prior", rows)

    def interpolation(self) -> Section:
        a, b = [*self.real][:2]
        steps = list(self._make("interpolate", inputs=[a, b], n=_STEPS))
        clips = [Clip(f"{made.job.settings['weight']:.0%}", made.line["file"]) for made in steps]
        middle = steps[_STEPS // 2]
        titles = (f"original {a}", "half way")
        figure = self._mels(middle, self.real[a].mel, middle.mel, titles)
        ends = [self.real[a].original, *clips, self.real[b].original]
        return Section("Interpolation", [Row(f"{a} to {b}", ends, [figure])])

    def transfers(self) -> Section:
        rows = []
        for content, style in permutations(self.real, 2):
            (made,) = self._make("transfer", inputs=[content], voices=[style])
            words, voice = self.real[content], self.real[style]
            clips = [
                Clip("words", words.original.file),
                Clip("voice", voice.original.file),
                Clip("transfer", made.line["file"]),
            ]
            figure = self._mels(made, words.mel, made.mel, ("words", "transfer"))
            rows.append(Row(f"{content} in the voice of {style}", clips, [figure]))
        return Section("Voice transfer", rows)

    def traversal(self) -> Section:
        """Along the dimension of z that varies most over the set."""
        archive = self.inputs.archive
        assert archive is not None
        utt_ids = archive.utt_ids[:_SCATTERED]
        z = np.concatenate(
            [self.inputs.codes(name, self.request).z.cpu().numpy() for name in utt_ids]
        )
        speakers = [archive.utt2spk.get(name, "") for name in utt_ids]
        dim, utt_id = int(z.var(0).argmax()), next(iter(self.real))
        steps = self._make("traverse", inputs=[utt_id], dim=dim, n=_STEPS)
        clips = [Clip(f"{made.job.settings['value']:+g}", made.line["file"]) for made in steps]
        figure = self._save("latents", plots.latent_scatter(z, speakers))
        row = Row(f"{utt_id}, dimension {dim} of z", [self.real[utt_id].original, *clips], [figure])
        return Section("Traversal", [row])

    def _make(self, operation: str, **told: Any) -> Iterator[Rendered]:
        return self.renderer.render(plan(operation, self.inputs, replace(self.request, **told)))

    def _mels(
        self, made: Rendered, first: np.ndarray, second: np.ndarray, titles: tuple[str, str]
    ) -> str:
        figure = plots.mel_pair(first, second, self.config.feature, titles)
        return self._save(f"{made.job.name}.mel", figure)

    def _save(self, name: str, figure: Figure) -> str:
        with atomic_path(self.renderer.folder.path / f"{name}.png") as temporary:
            figure.savefig(temporary, format="png", dpi=80)
        return f"{name}.png"
