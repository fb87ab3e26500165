"""The one training loop, on Accelerate: batches, loss, step, look, save.

Position, data order and noise are ours: each step seeds its noise from (seed, step, rank), and the
order of an epoch follows from (seed, epoch), so that a checkpoint needs no state of any random
number generator.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import nn
from torch.utils.data import DataLoader

import audiovae
from audiovae.config import Config
from audiovae.config_file import dump_config
from audiovae.data.archive import FeatureArchive
from audiovae.data.atomic import atomic_path, write_text
from audiovae.data.batches import Batch
from audiovae.data.dataset import FrameBudgetSampler, MelDataset, collate
from audiovae.data.stats import Stats
from audiovae.errors import DataDirError, ResourceError
from audiovae.models.masking import ceil_div
from audiovae.models.vae import AudioVAE
from audiovae.training import checkpoint, schedules
from audiovae.training.checkpoint import Progress
from audiovae.training.losses import Objective
from audiovae.training.mixture import fit_mixture
from audiovae.training.monitor import Samples, TrainLog, Validation, warn_if_unused
from audiovae.vocoder import load_vocoder

_log = logging.getLogger(__name__)
MAX_SKIPPED = 20  # steps in a row that are not finite, before the run stops


class _Trainee(nn.Module):
    """Model and objective as the one module that is trained: a batch in, a loss out."""

    def __init__(self, model: AudioVAE, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(
        self, batch: Batch, step: int, frames: float
    ) -> tuple[torch.Tensor, dict[str, float]]:
        return self.objective(self.model(batch.mel, batch.lengths), step, frames)


def train(config: Config, dump_dir: str | Path, exp_dir: str | Path) -> Path:
    """Train on DUMP/train, look at DUMP/dev; goes on from the newest checkpoint of exp_dir.

    Returns:
        The folder of the last checkpoint.

    Raises:
        DataDirError, FeatureMismatchError, CheckpointError, VocoderError: before training starts.
        ResourceError: another run holds exp_dir.
    """
    dump_dir, exp_dir = Path(dump_dir), Path(exp_dir)
    exp_dir.mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(mixed_precision=config.train.mixed_precision)
    with _lock(exp_dir / ".lock") if accelerator.is_main_process else nullcontext():
        return _Run(config, dump_dir, exp_dir, accelerator).run()


class _Run:
    """What one run holds: data, model, objective, optimizer, and where it stands."""

    def __init__(
        self, config: Config, dump_dir: Path, exp_dir: Path, accelerator: Accelerator
    ) -> None:
        self.config, self.exp_dir, self.accelerator = config, exp_dir, accelerator
        self.main = accelerator.is_main_process
        self.train_set, dev, stats = _features(config, dump_dir)
        vocoder = load_vocoder(config.vocoder.name, accelerator.device, feature=config.feature)
        torch.manual_seed(config.train.seed)
        self.model = AudioVAE(config, stats.mean, stats.scale)
        frames = torch.tensor(MelDataset(self.train_set).num_frames)
        self.model.prior.length.fit(ceil_div(frames, config.frames_per_slot))
        self.objective = Objective(config)
        trainee = _Trainee(self.model, self.objective).to(accelerator.device)
        self.optimizer = torch.optim.AdamW(
            trainee.parameters(), lr=config.train.learning_rate, betas=config.train.betas,
            weight_decay=config.train.weight_decay, fused=True,
        )  # fmt: skip
        self.checkpoints = exp_dir / "checkpoints"
        newest = checkpoint.latest(self.checkpoints)
        self.at = Progress()
        if newest is not None:
            self.at = checkpoint.load(newest, self.model, self.objective, self.optimizer)
            _log.info("going on from %s", newest)
        self.trainee, self.optimizer = accelerator.prepare(trainee, self.optimizer)
        self.skipped = 0
        self.window: list[tuple[float, float]] = []  # (time, frames) since the last log
        if self.main:
            self.validation = Validation(dev, accelerator.device)
            self.samples = Samples(dev, vocoder, exp_dir / "samples", accelerator.device)
            with atomic_path(exp_dir / "config.yaml") as temporary:
                dump_config(config, temporary)
            _write_environment(exp_dir / "env.json", accelerator)

    def run(self) -> Path:
        train = self.config.train
        with _tensorboard(self.exp_dir, self.main) as self.tracker, _signals() as stop:
            log = TrainLog(self.exp_dir / "train.log", self._progress()) if self.main else None
            self.log = log
            try:
                started = time.monotonic() - self.at.seconds
                launcher = os.getppid()
                for batches, epoch, done in self._batches():
                    # the main process's clock and signals count, so that all stop together
                    if _launcher_is_gone(launcher):
                        stop.append(signal.SIGTERM)
                    seconds, stopped = self._agree(time.monotonic() - started, float(bool(stop)))
                    self.at.seconds = seconds
                    if self._progress() >= 1.0 or stopped:
                        break
                    self._step(batches)
                    self.at.epoch, self.at.batch = epoch, done
                    self._look()
                    if self.main and self.at.step % train.save_every == 0:
                        self._save()
                path = self._end(interrupted=bool(stop))
            finally:
                if log is not None:
                    log.close()
            if stop:
                raise SystemExit(128 + stop[0])
            return path

    def _progress(self) -> float:
        return schedules.progress(self.at.step, self.at.seconds, self.config.train)

    def _batches(self) -> Iterator[tuple[list[Batch], int, int]]:
        """`accumulate` batches a step, for ever, with the epoch and batch that come after them."""
        data, dataset = self.config.data, MelDataset(self.train_set)
        epoch, done = self.at.epoch, self.at.batch
        group: list[Batch] = []
        while True:
            sampler = FrameBudgetSampler(
                dataset.num_frames, frames=data.batch_frames, utterances=data.batch_utterances,
                seed=self.config.train.seed, epoch=epoch, start=done,
                rank=self.accelerator.process_index, processes=self.accelerator.num_processes,
            )  # fmt: skip
            loader = DataLoader(
                dataset, batch_sampler=sampler, collate_fn=collate, num_workers=data.num_workers
            )
            for batch in loader:
                group.append(batch.to(self.accelerator.device))
                done += 1
                if len(group) == self.config.train.accumulate:
                    yield group, epoch, done
                    group = []
            epoch, done = epoch + 1, 0

    def _step(self, batches: list[Batch]) -> None:
        """One optimizer step; not applied where loss or gradient is not finite."""
        train, accelerator, step = self.config.train, self.accelerator, self.at.step
        rate = schedules.learning_rate(step, self._progress(), train)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.trainee.train()
        # all frames of the step, so that neither accumulation nor processes change the loss;
        # DDP averages gradients, hence times the number of processes
        own = sum(float(batch.lengths.sum()) for batch in batches)
        total = accelerator.reduce(torch.tensor(own, device=accelerator.device), "sum").item()
        normaliser = total / accelerator.num_processes
        parts: dict[str, float] = {}
        for n, batch in enumerate(batches):
            torch.manual_seed(_noise_seed(train.seed, step, accelerator.process_index, n))
            last = n == len(batches) - 1
            with nullcontext() if last else accelerator.no_sync(self.trainee):
                loss, terms = self.trainee(batch, step, normaliser)
                accelerator.backward(loss)
            for name, value in terms.items():
                parts[name] = parts.get(name, 0.0) + value / len(batches)
        norm = accelerator.clip_grad_norm_(self.trainee.parameters(), train.clip_grad_norm)
        parts["grad_norm"] = float(norm)
        parts = self._mean_over_processes(parts)
        if np.isfinite(parts["grad_norm"]) and np.isfinite(parts["loss"]):
            self.optimizer.step()
            self.objective.after_step(parts["kl_z"], parts["kl_u_per_second"])
            self.skipped = 0
        else:
            self._skip(batches)
        self.optimizer.zero_grad()
        self.at.step += 1
        self.parts, self.frames, self.rate = parts, total, rate

    def _agree(self, *values: float) -> list[float]:
        """The values of the main process, on all processes."""
        if self.accelerator.num_processes == 1:
            return list(values)
        shared = torch.tensor(values, device=self.accelerator.device, dtype=torch.float64)
        return broadcast(shared).tolist()

    def _mean_over_processes(self, parts: dict[str, float]) -> dict[str, float]:
        if self.accelerator.num_processes == 1:
            return parts
        values = torch.tensor(list(parts.values()), device=self.accelerator.device)
        mean = self.accelerator.reduce(values, "mean").tolist()
        return dict(zip(parts, mean, strict=True))

    def _skip(self, batches: list[Batch]) -> None:
        self.skipped += 1
        utt_ids = " ".join(u for batch in batches for u in batch.utt_ids)
        _log.warning("step %d: not finite, not applied: %s", self.at.step, utt_ids)
        if self.skipped >= MAX_SKIPPED:
            raise DataDirError(
                f"{MAX_SKIPPED} steps in a row are not finite; the last had {utt_ids}. "
                f"Look at these features, or lower train.learning_rate"
            )

    def _look(self) -> None:
        """Log, validate and render, each every so many steps."""
        if self.log is None:
            return
        step, train = self.at.step, self.config.train
        self.window.append((time.monotonic(), self.frames))
        seconds = self.window[-1][0] - self.window[0][0]
        rate = sum(f for _, f in self.window[1:]) / seconds if seconds > 0 else 0.0
        audio = rate / self.config.feature.frame_rate
        line = f"step {step}  loss {self.parts['loss']:.2f}  {audio:.0f} x real time"
        self.log.advance(self._progress(), line)
        if step % train.log_every == 0:
            figures = {**self.parts, "learning_rate": self.rate, "audio_seconds_per_second": audio}
            self.window = self.window[-1:]
            self._record("train", figures)
        if step % train.valid_every == 0:
            self._validate()
        if step % train.sample_every == 0:
            self.samples(self.model, step, self.tracker)

    def _validate(self) -> None:
        figures = self.validation(self.model)
        self._record("valid", figures)
        warn_if_unused(figures, self.at.step)
        self.at.best = min(self.at.best, figures["negative_elbo"])

    def _record(self, kind: str, figures: dict[str, float]) -> None:
        assert self.log is not None
        self.log.write(kind, self.at.step, figures)
        if self.tracker is not None:
            for name, value in figures.items():
                self.tracker.add_scalar(f"{kind}/{name}", value, self.at.step)

    def _save(self) -> Path:
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        keep = self.config.train.keep_checkpoints
        return checkpoint.save(
            self.checkpoints, self.at, self.model, self.objective, optimizer, keep
        )

    def _end(self, interrupted: bool) -> Path:
        if self.main and not interrupted:
            if self.at.step % self.config.train.valid_every:
                self._validate()
            fit_mixture(self.model, self.train_set, seed=self.config.train.seed)
        path = self._save() if self.main else self.checkpoints
        if interrupted and self.main:
            _log.info("stopped, saved in %s; the same command goes on from there", path)
        self.accelerator.wait_for_everyone()
        return path


def _features(config: Config, dump_dir: Path) -> tuple[FeatureArchive, FeatureArchive, Stats]:
    """The training and dev features and their statistics, of the config's mel contract."""
    train, dev = FeatureArchive(dump_dir / "train"), FeatureArchive(dump_dir / "dev")
    stats = Stats.load(dump_dir / "train" / "stats.json")
    for feature, whose in (
        (train.feature, train.path), (dev.feature, dev.path), (stats.feature, "stats.json"),
    ):  # fmt: skip
        config.feature.require_same(feature, "the config", str(whose))
    for archive in (train, dev):
        if not archive.utt_ids:
            raise DataDirError(f"{archive.path}: no utterances")
    return train, dev, stats


def _launcher_is_gone(parent: int) -> bool:
    """One of several processes whose launcher was killed: nobody is left to stop it."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != parent


def _noise_seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _write_environment(path: Path, accelerator: Accelerator) -> None:
    environment = {
        "audiovae": audiovae.__version__, "torch": torch.__version__,
        "python": platform.python_version(), "machine": platform.machine(),
        "device": str(accelerator.device), "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    write_text(path, json.dumps(environment, indent=1) + "\n")


@contextmanager
def _tensorboard(exp_dir: Path, main: bool) -> Iterator[Any]:
    if not main:
        yield None
        return
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(exp_dir / "tensorboard"))
    try:
        yield writer
    finally:
        writer.close()


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold exp_dir against a second run."""
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip()
            raise ResourceError(f"{path.parent}: another run is training here: {holder}") from None
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()} since {time.ctime()}\n")
        file.flush()
        yield


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The list fills with the first signal to stop; a second one ends the process at once."""
    caught: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if caught:
            os._exit(128 + number)
        caught.append(number)

    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in wanted}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
