"""Batches: which utterances make one, in an order that follows from (seed, epoch) alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from torch.utils.data import Dataset

from audiovae.data.archive import FeatureArchive
from audiovae.data.batches import Batch, pad
from audiovae.errors import DataDirError


class MelDataset(Dataset[tuple[str, np.ndarray]]):
    """(utt_id, mel (T, M)) of a feature archive, by index."""

    def __init__(self, archive: FeatureArchive) -> None:
        self.archive = archive
        self.utt_ids = archive.utt_ids
        self.num_frames = [archive.num_frames[u] for u in self.utt_ids]

    def __len__(self) -> int:
        return len(self.utt_ids)

    def __getitem__(self, index: int) -> tuple[str, np.ndarray]:
        utt_id = self.utt_ids[index]
        return utt_id, self.archive[utt_id]


def collate(items: Sequence[tuple[str, np.ndarray]]) -> Batch:
    """Pad to the longest."""
    return Batch([utt_id for utt_id, _ in items], *pad([mel for _, mel in items]))


class FrameBudgetSampler:
    """Batches of utterances of similar length, of at most `frames` padded frames each.

    The order of an epoch is a permutation from (seed, epoch): any position can be reached without
    walking to it. With several processes each batch is dealt out evenly and what does not divide
    goes to the first ranks, so an epoch has the same batches whatever the number of processes, as
    long as none has fewer utterances than there are processes.

    Args:
        num_frames: of each utterance.
        start: batches of the first epoch to leave out (resume).
    """

    BUCKET = 20  # batches' worth of utterances that are sorted by length together

    def __init__(
        self,
        num_frames: Sequence[int],
        *,
        frames: int,
        utterances: int,
        seed: int,
        epoch: int = 0,
        start: int = 0,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        if len(num_frames) < processes:
            raise DataDirError(
                f"{len(num_frames)} utterances to train on, for {processes} processes: "
                f"give at most --num_processes {len(num_frames)}"
            )
        self.num_frames = np.asarray(num_frames)
        self.frames, self.utterances = frames, utterances
        self.seed, self.epoch, self.start = seed, epoch, start
        self.rank, self.processes = rank, processes

    def batches(self) -> list[list[int]]:
        """All batches of the epoch over all processes, in order."""
        rng = np.random.default_rng([self.seed, self.epoch])
        order = rng.permutation(len(self.num_frames))
        chunk = self.BUCKET * self.utterances
        batches: list[list[int]] = []
        for first in range(0, len(order), chunk):
            part = order[first : first + chunk]
            part = part[np.argsort(self.num_frames[part], kind="stable")]
            batches += self._fill(part)
        return [batches[i] for i in rng.permutation(len(batches))]

    def _fill(self, indices: np.ndarray) -> list[list[int]]:
        batches: list[list[int]] = []
        current: list[int] = []
        for index in indices.tolist():
            # sorted by length: the newest is the longest
            too_big = (len(current) + 1) * self.num_frames[index] > self.frames
            full = too_big or len(current) == self.utterances
            if full and len(current) >= self.processes:
                batches.append(current)
                current = []
            current.append(index)
        # a small remainder takes from its neighbour: a lone utterance is a noisy step
        while batches and len(batches[-1]) > len(current) + 1:
            if (len(current) + 1) * self.num_frames[current[-1]] > self.frames:
                break
            current.insert(0, batches[-1].pop())
        if len(current) >= self.processes or not batches:
            batches.append(current)
        else:
            batches[-1] += current
        return batches

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches()[self.start :]:
            yield batch[self.rank :: self.processes]

    def __len__(self) -> int:
        return len(self.batches()) - self.start
