"""The child of `benchmarks.harness.remote`: sets one contender up and lets it play when asked."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.contenders.registry import CONTENDERS
from benchmarks.harness.session import Session

WARM_UP_S = 0.5


def _pss_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def _resources(session: Session, fds_before: int) -> dict[str, float]:
    """Memory and descriptors of idle workers, per worker."""
    pids = session.pids
    if not pids:
        return {}
    return {
        "pss_mb": sum(map(_pss_mb, pids)) / len(pids),
        "parent_fds": (len(os.listdir("/proc/self/fd")) - fds_before) / len(pids),
        "worker_fds": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids) / len(pids),
    }


def _report(result: dict[str, Any]) -> None:
    print("RESULT " + json.dumps(result), flush=True)


def _serve(order: dict[str, Any]) -> None:
    if order.get("import_first"):
        importlib.import_module(order["import_first"])
    contender = CONTENDERS[order["contender"]]
    contender.load()
    fds_before = len(os.listdir("/proc/self/fd"))
    begin = time.perf_counter()
    session = contender.open(order["workload"], order["settings"], order.get("predictor"))
    startup_s = time.perf_counter() - begin
    try:
        session.play(WARM_UP_S)
        _report({"startup_s": startup_s, "settings": order["settings"]})
        for line in sys.stdin:
            result = session.play(float(line), order.get("learner"))
            if order.get("resources"):
                result |= _resources(session, fds_before)
            _report(result)
    finally:
        session.close()


def _end_with_parent() -> None:
    """Have the kernel end this process with the one that started it, even if stopped."""
    pr_set_pdeathsig = 1
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main() -> None:
    """Be the session that the argument (JSON) asks for, until stdin ends."""
    _end_with_parent()
    _serve(json.loads(sys.argv[1]))
    # Some contenders leave threads or processes behind, which would keep this one.
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main()
