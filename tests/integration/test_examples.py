"""The examples run, as real processes, and print what they say."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


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


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text()
    assert [path.name for path in sorted(EXAMPLES.glob("*.py")) if f'"{path.name}"' not in text] == []


def test_the_five_lines_of_the_readme_run_as_they_stand() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text()
    lines = readme.split("```python\n")[1].split("```")[0]
    # A port of this test's own, and nobody else there: alone in its group, a member hears itself.
    lines = lines.replace('preset("reliable", STATIC', 'preset("reliable", TCP={"bind_port": 0}, STATIC')
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
