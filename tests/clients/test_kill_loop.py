"""A few rounds of the loop that `make chaos` runs for long."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kill_loop import Ledger, Loop


def test_nothing_is_lost_or_comes_back_or_comes_unflagged_when_the_node_is_killed_again_and_again(
    tmp_path: Path,
) -> None:
    lines: list[str] = []
    outcome = asyncio.run(Loop(tmp_path / "data", 1, lines.append).run(3))
    assert outcome["violations"] == []
    assert len(lines) == 3
    assert min(int(str(outcome[name])) for name in ("confirmed", "delivered", "again", "settled")) > 0


def test_the_ledger_notices_what_must_not_be() -> None:
    ledger = Ledger(sent=dict.fromkeys((b"a", b"b", b"c"), 1), sure={b"a", b"b"})
    ledger.deliver(b"a", False, 1)
    ledger.settled.add(b"a")
    ledger.deliver(b"a", True, 2)
    ledger.deliver(b"c", False, 1)
    ledger.deliver(b"c", False, 1)
    ledger.deliver(b"d", False, 1)
    ledger.close(2)
    assert ledger.violations == [
        "b'a': came back after its ack was safe",
        "b'c': came again without a flag",
        "b'd': nobody sent it",
        "b'b': was confirmed and is lost",
    ]


def test_the_ledger_notices_a_transaction_of_which_only_a_part_is_safe() -> None:
    ledger = Ledger()
    for name, life in {b"kept": 1, b"settled": 1, b"last": 3, b"gone": 1, b"whole": 1}.items():
        ledger.sent.update({b"%s/%d" % (name, part): life for part in range(4)})
    ledger.deliver(b"kept/0", True, 2)
    ledger.deliver(b"settled/0", False, 1)
    ledger.settled.add(b"settled/0")
    ledger.deliver(b"last/0", False, 3)
    ledger.deliver(b"gone/0", False, 1)  # and with the node all of it
    for part in range(4):
        ledger.deliver(b"whole/%d" % part, True, 2)
    ledger.close(3)
    assert ledger.violations == ["b'kept': 1 of 4 parts", "b'last': 1 of 4 parts", "b'settled': 1 of 4 parts"]
    assert ledger.undone == 1
