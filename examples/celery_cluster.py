"""Celery on three brokers that are one: the one that everybody is connected to is killed -9, and every task is done.

python examples/celery_cluster.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from celery import Celery

TASKS = 60

# The application, as the worker's process and this one both load it. Every broker serves every queue, so a client
# needs to know them all, and takes the next one when its own is gone.
app = Celery("celery_cluster")
app.conf.update(
    broker_url=os.environ.get("BROKERS", "amqp://").split(";"),
    result_backend=f"file://{os.environ.get('RESULTS', '/tmp')}",
    task_acks_late=True,  # a task whose worker lost its connection is done again by somebody
    worker_prefetch_multiplier=4,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_connection_timeout=2,
    broker_transport_options={"confirm_publish": True},  # sent is what a majority of the brokers has
)


@app.task
def square(number: int) -> int:
    return number * number


def start_brokers(folder: Path) -> tuple[subprocess.Popen[str], dict[str, int]]:
    """The cluster, and the brokers' URLs with their process ids."""
    command = [sys.executable, "-m", "coterie", "up", "--nodes", "3", "--data", str(folder / "brokers"), "--port", "0"]
    cluster = subprocess.Popen([*command, "--console-port", "", "--json"], stdout=subprocess.PIPE, text=True,
                               stderr=(folder / "brokers.log").open("w"))  # fmt: skip
    assert cluster.stdout is not None
    text = ""
    while text.count("\n}\n") < 2:  # one object says where they are, another one that all of them serve
        text += cluster.stdout.readline()
    nodes = json.JSONDecoder().raw_decode(text)[0]["nodes"]
    return cluster, {f"amqp://guest:guest@{node['amqp'][0]}//": node["pid"] for node in nodes}


def start_worker(folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "celery", "-A", "celery_cluster", "worker", "--pool", "solo", "--without-gossip"]
    log = (folder / "worker.log").open("w")
    return subprocess.Popen(command, cwd=Path(__file__).parent, stdout=log, stderr=log)


def main(folder: Path) -> None:
    cluster, brokers = start_brokers(folder)
    os.environ.update(BROKERS=";".join(brokers), RESULTS=str(folder))
    app.conf.update(broker_url=list(brokers), result_backend=f"file://{folder}")
    worker = start_worker(folder)
    try:
        first = square.delay(1).get(timeout=60, interval=0.05)
        print("three brokers, one worker, the first result:", first)

        results = []
        for number in range(TASKS):
            if number == TASKS // 2:
                os.kill(brokers[next(iter(brokers))], signal.SIGKILL)
                print("kill -9: the first broker is gone, in the middle of it")
            results.append(square.apply_async((number,), retry=True))

        squares = [result.get(timeout=60, interval=0.05) for result in results]
        assert squares == [number * number for number in range(TASKS)]
        print(f"{TASKS} tasks sent, {len(squares)} results, none missing")
    finally:
        worker.kill()
        worker.wait()
        cluster.terminate()
        cluster.communicate()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
