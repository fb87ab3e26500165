"""Batches: the budget, every utterance once, and an order that (seed, epoch) alone decides."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from audiovae.config import FeatureConfig
from audiovae.data.archive import FeatureArchive
from audiovae.data.dataset import FrameBudgetSampler, MelDataset, collate
from audiovae.errors import DataDirError

FRAMES = np.random.default_rng(0).integers(20, 400, 300).tolist()


def sampler(**changes: Any) -> FrameBudgetSampler:
    told: dict[str, Any] = {"frames": 2000, "utterances": 8, "seed": 1, **changes}
    return FrameBudgetSampler(told.pop("num_frames", FRAMES), **told)


@pytest.mark.parametrize(("frames", "utterances"), [(2000, 8), (1000, 64), (100000, 3)])
def test_batches_keep_to_the_budget_and_are_of_one_length(frames: int, utterances: int) -> None:
    batches = list(sampler(frames=frames, utterances=utterances))
    for batch in batches:
        longest = max(FRAMES[i] for i in batch)
        assert len(batch) <= utterances and len(batch) * longest <= frames
    padded = sum(len(batch) * max(FRAMES[i] for i in batch) for batch in batches)
    assert sum(FRAMES) / padded > 0.85
    assert sorted(i for batch in batches for i in batch) == list(range(300))


def test_longer_than_the_budget_stands_alone() -> None:
    batches = list(sampler(num_frames=[10, 5000, 10, 7000], frames=100))
    assert sorted(map(sorted, batches)) == [[0, 2], [1], [3]]


def test_a_small_remainder_is_evened_out() -> None:
    batches = list(sampler(num_frames=[10] * 10, utterances=3))
    assert sorted(map(len, batches)) == [2, 2, 3, 3]
    for batch in sampler(num_frames=[10, 10, 10, 10, 30], frames=40):  # if the budget allows
        assert len(batch) in (1, 4)


def test_order_follows_from_seed_and_epoch_alone() -> None:
    first = list(sampler(epoch=3))
    np.random.default_rng(9).random()
    torch.manual_seed(99)
    assert list(sampler(epoch=3)) == first
    assert list(sampler(epoch=4)) != first and list(sampler(epoch=3, seed=2)) != first
    sizes = [FRAMES[batch[0]] for batch in first]
    assert np.corrcoef(sizes[:-1], sizes[1:])[0, 1] < 0.5  # short and long are mixed


@pytest.mark.parametrize("k", [0, 1, 17])
def test_start_leaves_out_what_is_done(k: int) -> None:
    whole, rest = sampler(epoch=2), sampler(epoch=2, start=k)
    assert list(rest) == list(whole)[k:]
    assert len(rest) == len(whole) - k == len(list(rest))


@pytest.mark.parametrize("processes", [2, 3])
def test_ranks_share_each_batch(processes: int) -> None:
    one = list(sampler())
    ranks = [list(sampler(rank=r, processes=processes)) for r in range(processes)]
    assert len({len(rank) for rank in ranks}) == 1
    for whole, *parts in zip(one, *ranks, strict=True):
        assert sorted(i for part in parts for i in part) == sorted(whole)
        sizes = [len(part) for part in parts]
        assert min(sizes) > 0 and max(sizes) - min(sizes) <= 1


def test_no_rank_is_left_empty() -> None:
    long = [500] * 7  # one utterance fills the budget
    ranks = [list(sampler(num_frames=long, frames=500, rank=r, processes=3)) for r in range(3)]
    assert all(batch for rank in ranks for batch in rank)
    assert sorted(i for rank in ranks for batch in rank for i in batch) == list(range(7))
    with pytest.raises(DataDirError, match=r"^2 utterances .* at most --num_processes 2$"):
        sampler(num_frames=[1, 2], processes=3)


@pytest.fixture
def dataset(write_dump: Callable[..., Path], tmp_path: Path) -> MelDataset:
    rng = np.random.default_rng(0)
    mels = {f"s-{n}": rng.standard_normal((n, 4)).astype(np.float32) for n in (3, 5, 2, 4)}
    feature = FeatureConfig(n_mels=4)
    return MelDataset(FeatureArchive(write_dump(tmp_path / "dump", mels, feature)))


def test_a_batch_is_padded_with_zeros(dataset: MelDataset) -> None:
    assert pickle.loads(pickle.dumps(dataset)).utt_ids == dataset.utt_ids  # noqa: S301 (ours)
    batch = collate([dataset[i] for i in (1, 3)])
    assert batch.utt_ids == ["s-3", "s-5"] and batch.lengths.tolist() == [3, 5]
    assert batch.mel.shape == (2, 5, 4) and batch.mel.dtype == torch.float32
    np.testing.assert_array_equal(batch.mel[0, :3], dataset.archive["s-3"])
    assert (batch.mel[0, 3:] == 0).all()
    assert torch.equal(batch.to("cpu").mel, batch.mel)


def test_a_loader_gives_the_sampled_batches(dataset: MelDataset) -> None:
    order = FrameBudgetSampler(dataset.num_frames, frames=9, utterances=2, seed=0)
    batches = list(DataLoader(dataset, batch_sampler=order, collate_fn=collate))
    assert [b.utt_ids for b in batches] == [[dataset.utt_ids[i] for i in b] for b in order]
    assert sum(int(b.lengths.sum()) for b in batches) == 14
