"""Several training processes on the CPUs of this machine, through torch's elastic launcher.

A training step has loops over time that threads cannot share; a process a core can.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from uuid import uuid4

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from audiovae.errors import ResourceError

GRACE_SECONDS = 60  # for a process that was told to stop, to save


def launch(num_processes: int, arguments: Sequence[str]) -> None:
    """Run `audiovae ARGUMENTS` in that many processes, and wait; the first one's output is shown.

    Raises:
        SystemExit: with the code of the first process that failed, or 128 + the signal caught.
    """
    threads = max(1, torch.get_num_threads() // num_processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ["ACCELERATE_USE_CPU"] = "true"
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=num_processes, run_id=uuid4().hex,
        rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0,
        logs_specs=DefaultLogsSpecs(local_ranks_filter={0}), shutdown_timeout=GRACE_SECONDS,
    )  # fmt: skip
    # what it reports of a process that ended says no more than that process did
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, sys.executable)("-m", "audiovae", *arguments)
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        if first.exitcode > 0:
            raise SystemExit(first.exitcode) from None
        raise ResourceError(
            f"process {first.local_rank} of {num_processes} was killed by signal {-first.exitcode} "
            f"(9: often for want of memory). The same command goes on from the last checkpoint; "
            f"fewer --num_processes or a lower data.batch_frames take less memory"
        ) from None
    except SignalException as caught:
        raise SystemExit(128 + caught.sigval) from None
