"""What the disk allows: processes that append and sync, each its own file, side by side, and do nothing else.

As many as a cluster has brokers, as each of them has to write every message. A worker appends as much as a publisher
lets wait for confirms, syncs it, and goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from coterie.bench.broker_clients import WINDOW
from coterie.bench.broker_nodes import scratch, working

PROBE = "coterie.bench.broker_disk"


def written(copies: int, size: int, seconds: float, data: Path | None) -> float:
    """Messages per second of which so many copies get to the disk: those of the slowest."""
    folder = scratch(data)
    try:
        with ExitStack() as stack:
            workers = [
                stack.enter_context(working(PROBE, {"file": str(folder / f"copy{number}"), "chunk": WINDOW * size}))[0]
                for number in range(copies)
            ]
            for worker in workers:
                worker.tell({"seconds": seconds})
            slowest = min(float(worker.hear()["bytes_per_second"]) for worker in workers)
        return slowest / size
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    options = json.loads(sys.argv[1])
    chunk = b"x" * options["chunk"]
    file = os.open(options["file"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        seconds, done, began = json.loads(line)["seconds"], 0, time.monotonic()
        while (elapsed := time.monotonic() - began) < seconds or not done:
            done += os.write(file, chunk)
            os.fdatasync(file)
        print(json.dumps({"bytes_per_second": done / elapsed}), flush=True)


if __name__ == "__main__":
    main()
