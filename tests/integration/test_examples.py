"""The examples run, as real processes, and print what they say."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
ELSEWHERE = Path(__file__).parents[1] / "spark" / "test_orders_pipeline.py"
"""The one that needs Spark is run there."""


def two_free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def test_two_processes_greet_each_other() -> None:
    here, there = two_free_ports()
    commands = [
        [sys.executable, str(EXAMPLES / "hello.py"), "alpha", str(here), str(there)],
        [sys.executable, str(EXAMPLES / "hello.py"), "beta", str(there), str(here)],
    ]
    processes = [subprocess.Popen(c, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for c in commands]
    try:
        for process in processes:
            out, errors = process.communicate(timeout=60)
            assert errors == ""
            assert sorted(out.splitlines()) == ["alpha: hello, everybody", "beta: hello, everybody"]
            assert process.returncode == 0
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_three_members_vote_and_the_one_that_asked_counts() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "group.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == "the group: alpha, beta, gamma"
    assert sorted(lines[1:4]) == ["alpha votes for tea", "beta votes for coffee", "gamma votes for tea"]
    assert lines[4:] == ["it is tea, 2 to 1", "alpha is left alone"]
    assert done.returncode == 0


def lines_of(example: str) -> list[str]:
    """What an example prints that runs by itself, and ends well."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.splitlines()


def test_members_ask_one_all_and_the_first_and_learn_who_was_lost() -> None:
    assert lines_of("rpc.py") == [
        "beta alone: t-e-a",
        "beta alone: ValueError: 4711 is no word",
        "all: alpha, beta, gamma",
        "the first two: alpha, beta",
        "alpha: answered",
        "beta: answered",
        "gamma: lost",
    ]


def test_members_share_a_dictionary_and_sell_no_apple_twice() -> None:
    lines = lines_of("shared_dict.py")
    assert lines[:3] == [
        "beta joined, and has 10 apples",
        "gamma joined, and has 10 apples",
        "12 customers wanted an apple, 10 got one",
    ]
    assert lines[3:] == [f"{name}: {{'apples': '0', 'closed': 'yes'}}" for name in ("alpha", "beta", "gamma")]


def test_members_use_a_printer_one_at_a_time_and_a_larger_token_wins() -> None:
    lines = lines_of("lock.py")
    clerks = [lines[n].split(":")[0] for n in (0, 2, 4)]
    assert sorted(clerks) == ["alpha", "beta", "gamma"]
    assert lines[:6] == [f"{clerk}: page {page}" for clerk in clerks for page in (1, 2)]
    assert lines[6:] == [
        "gamma takes the lock and goes home",
        "beta has it now, and its token is larger: True",
        "beta: page 3",
        "gamma is refused: somebody else has the printer",
    ]


def test_members_draw_numbers_and_none_is_drawn_twice() -> None:
    assert lines_of("counter.py") == [
        "alpha starts at 100",
        "beta joined at 100",
        "gamma joined at 100",
        "30 tickets, 30 different ones, from 101 to 130",
    ]


def test_members_complete_their_transactions_before_a_joiner_gets_the_state() -> None:
    lines = lines_of("two_phase_commit.py")
    assert "C: set_state(): 0 transactions are half-done" in lines
    assert any(line.endswith("transactions that have begun") for line in lines)
    assert "all that was begun was committed: True" in lines
    assert "the same accounts everywhere: True" in lines


def test_workers_share_a_queue_and_one_that_dies_leaves_its_job_to_others() -> None:
    assert lines_of("work_queue.py") == [
        "30 jobs are in the queue",
        "a worker dies at job 7, after 7 others",
        "job 7 comes again, and says so",
        "30 jobs are done, each of them once",
    ]


def test_celery_goes_on_when_the_broker_that_it_talks_to_is_killed() -> None:
    assert lines_of("celery_cluster.py") == [
        "three brokers, one worker, the first result: 1",
        "kill -9: the first broker is gone, in the middle of it",
        "60 tasks sent, 60 results, none missing",
    ]


def test_a_queue_is_a_data_frame_of_pandas() -> None:
    pytest.importorskip("pandas")
    assert lines_of("reader_pandas.py") == ["15:07 20.0 degrees", "15:08 21.0 degrees", "15:09 22.0 degrees"]


def test_a_queue_is_a_data_frame_of_polars() -> None:
    pytest.importorskip("polars", reason="polars is not installed: make setup")
    assert lines_of("reader_polars.py") == [
        "300 orders, positions 1 to 300",
        "worth 748.50",
        "no batch with more than 100",
        "{'shop': 'north', 'paid': True}",
    ]


def test_a_table_of_duckdb_is_loaded_from_a_queue_once_over_a_crash() -> None:
    pytest.importorskip("duckdb", reason="DuckDB is not installed: make setup")
    assert lines_of("reader_duckdb.py") == [
        "shop 0: 334 orders, 166833 cents",
        "shop 1: 333 orders, 166167 cents",
        "shop 2: 333 orders, 166500 cents",
        "the loader falls, with a batch that is stored and not done",
        "1000 rows, 1000 different ones",
        "0 messages are left",
    ]


def test_a_test_suite_with_a_broker_inside_passes() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "coterie.pytest_plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "test_embedded.py")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.splitlines()[-1].startswith("3 passed"), done.stdout


def test_every_example_says_how_it_is_run_and_is_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for path in sorted(EXAMPLES.glob("*.py")):
        how = [line for line in path.read_text().split('"""')[1].splitlines() if line.startswith("python ")]
        assert how, path.name
        assert all(f"`{line}`" in listed for line in how), path.name


def test_every_example_is_run() -> None:
    text = Path(__file__).read_text() + ELSEWHERE.read_text()
    assert [path.name for path in sorted(EXAMPLES.glob("*.py")) if f'"{path.name}"' not in text] == []


def test_the_five_lines_of_the_readme_run_as_they_stand() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    lines = readme.split("```python\n")[1].split("```")[0]
    # A port of this test's own, and nobody else there: alone in its group, a member hears itself.
    stack = 'preset("total-order", '
    assert stack in lines
    lines = lines.replace(stack, f'{stack}TCP={{"bind_port": 0}}, ')
    lines = lines.replace('"10.0.0.2:7800", "10.0.0.3:7800"', "")
    program = f"""
import asyncio
from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.presets import preset
from coterie.runtime.aio import AioRuntime, run

heard = asyncio.Event()

class MyReceiver(Receiver):
    def receive(self, batch: list[Delivery]) -> None:
        print(bytes(batch[0].messages[0]).decode())
        heard.set()

async def main() -> None:
{"".join(f"    {line}" + chr(10) for line in lines.splitlines())}
    await heard.wait()
    await channel.close()
    await runtime.close()

run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("hello, everybody\n", "")
