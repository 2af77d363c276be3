"""What ranges of positions cost, in microseconds of processor time and in bytes; prints JSON. Not a part of any test.

Each figure is the median of many slices of the work, and the fastest one: on a machine that does other things as well,
the second is the better one to compare.

    python scripts/bench_ranges.py [set | map | runs | lengths | tags]...
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import sys
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from coterie.broker.ranges import IntervalMap, Lengths, PositionSet, Runs, TagRanges

MILLION = 10**6
SLICES = 40


def timed(work: Callable[[int], object], items: list[int]) -> dict[str, float]:
    """Microseconds of one call."""
    size = max(1, len(items) // SLICES)
    found: list[float] = []
    for at in range(0, len(items) - size + 1, size):
        some = items[at : at + size]
        begin = time.process_time()
        for item in some:
            work(item)
        found.append((time.process_time() - begin) / size * 1e6)
    return {"median_us": round(statistics.median(found), 2), "best_us": round(min(found), 2)}


def memory(make: Callable[[], object]) -> int:
    """Bytes that what it makes takes."""
    gc.collect()
    tracemalloc.start()
    kept = make()
    gc.collect()
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return size


def shuffled(count: int) -> list[int]:
    order = list(range(count))
    random.Random(1).shuffle(order)
    return order


def holes(positions: Iterable[int], count: int = MILLION) -> PositionSet:
    found = PositionSet([(0, count)])
    for position in positions:
        found.remove(position, position + 1)
    return found


def bench_set() -> dict[str, Any]:
    order = shuffled(MILLION)
    half = holes(order[: MILLION // 2])
    other = holes(order[MILLION // 4 : MILLION // 4 * 3])
    full, growing, shared = PositionSet([(0, MILLION)]), PositionSet(), PositionSet([(0, MILLION)])
    taken, scattered, big = PositionSet([(0, MILLION)]), half.copy(), PositionSet([(0, 10 * MILLION)])
    sample = random.Random(2).sample(range(10 * MILLION), 400_000)

    def remove_with_copy(position: int) -> None:
        kept = shared.copy()
        shared.remove(position, position + 1)
        del kept

    def cut(count: int) -> int:
        return memory(lambda: holes(order[:count]))

    return {
        "remove one of 10^6 at random": timed(lambda each: full.remove(each, each + 1), order),
        "remove one of 10^7 at random": timed(lambda each: big.remove(each, each + 1), sample),
        "remove one of 10^6, a copy kept before each": timed(remove_with_copy, order[:100_000]),
        "add 50 at the end": timed(lambda each: growing.add(50 * each, 50 * each + 50), list(range(20_000))),
        "take 50 from the head": timed(lambda _: taken.take_first(50), list(range(20_000))),
        "take 50 of every other at random": timed(lambda _: scattered.take_first(50), list(range(10_000))),
        "find": timed(half.__contains__, order[:100_000]),
        "count in a range of 1000": timed(lambda each: half.count_in(each, each + 1000), order[:100_000]),
        "union of two of 10^6, every other at random": timed(lambda _: half.union(other), list(range(40))),
        "encode 10^6, every other at random": timed(lambda _: half.encode(), list(range(40))),
        "bytes of 10^7 in a row": memory(lambda: PositionSet([(77, 10 * MILLION + 77)])),
        "bytes of 10^6, every other at random": cut(MILLION // 2),
        "bytes of 10^6, 1000 removed at random": cut(1000),
        "bytes of 10^6, 1000 left at random": cut(MILLION - 1000),
        "bytes encoded, every other at random": len(half.encode()),
    }


def bench_map() -> dict[str, Any]:
    order = shuffled(MILLION)
    counted, again, delivered = IntervalMap(), IntervalMap(), IntervalMap()
    again.set(0, MILLION, 1)

    def scattered() -> IntervalMap:
        found = IntervalMap()
        for position in order[: MILLION // 10]:
            found.add(position, position + 1, 1)
        return found

    return {
        "count up 50 new ones": timed(lambda each: delivered.add(50 * each, 50 * each + 50, 1), list(range(20_000))),
        "count up one of 10^6 at random": timed(lambda each: counted.add(each, each + 1, 1), order[:200_000]),
        "from 1 to 2, one of 10^6 at random": timed(lambda each: again.add(each, each + 1, 1), order[:200_000]),
        "clear one of 10^6 at random": timed(lambda each: again.clear(each, each + 1), order[:200_000]),
        "find": timed(again.get, order[:100_000]),
        "bytes of 10^6, a tenth of them counted at random": memory(scattered),
    }


def some_runs(size: int) -> Runs:
    found = Runs()
    for first in range(0, MILLION, size):
        found.append(first, size, first, 0)
    return found


def bench_runs() -> dict[str, Any]:
    order = shuffled(MILLION)
    runs, live, growing = some_runs(50), PositionSet([(0, MILLION)]), Runs()
    head, head_live = some_runs(50), PositionSet([(0, MILLION)])

    def drop(position: int) -> None:
        live.remove(position, position + 1)
        runs.drop(position, position + 1, live)

    def drop_head(number: int) -> None:
        head_live.remove(50 * number, 50 * number + 50)
        head.drop(50 * number, 50 * number + 50, head_live)

    return {
        "append an event of 50": timed(lambda each: growing.append(50 * each, 50, each, 0), list(range(20_000))),
        "find one of 10^6": timed(runs.find, order[:100_000]),
        "remove and drop one of 10^6 at random": timed(drop, order),
        "remove and drop 50 from the head": timed(drop_head, list(range(20_000))),
        "bytes a message, events of 50": memory(lambda: some_runs(50)) / MILLION,
        "bytes a message, events of 1": memory(lambda: some_runs(1)) / MILLION,
    }


def bench_lengths() -> dict[str, Any]:
    order = shuffled(MILLION)
    dice = random.Random(3)
    columns = [array("I", [dice.randrange(10_000) for _ in range(50)]) for _ in range(100)]

    def made() -> Lengths:
        found = Lengths()
        for number in range(MILLION // 50):
            found.append(50 * number, columns[number % 100])
        return found

    lengths, growing, even, live = made(), Lengths(), Lengths(), PositionSet([(0, MILLION)])
    same = array("I", [1024]) * 50

    def drop(position: int) -> None:
        live.remove(position, position + 1)
        lengths.drop(position, position + 1, live)

    return {
        "append 50": timed(lambda each: growing.append(50 * each, columns[each % 100]), list(range(20_000))),
        "append 50 of one length": timed(lambda each: even.append(50 * each, same), list(range(20_000))),
        "sum of 50": timed(lambda each: growing.sum(each, each + 50), order[:100_000]),
        "sum of 100000": timed(lambda each: growing.sum(each, each + 100_000), order[:10_000]),
        "remove and drop one of 10^6 at random": timed(drop, order),
        "bytes a message": memory(made) / MILLION,
        "bytes of 10^6 of one length": memory(lambda: even.copy()),
    }


def bench_tags() -> dict[str, Any]:
    order = [tag + 1 for tag in shuffled(MILLION)]

    def made() -> TagRanges:
        found = TagRanges()
        for first in range(0, MILLION, 50):
            found.deliver(first // 50 % 2, [(first, first + 50)], float(first))
        return found

    one, any_order, many = made(), made(), made()
    window = TagRanges()

    def deliver_and_settle(number: int) -> None:
        tag = window.deliver(0, [(50 * number, 50 * number + 50)], float(number))
        window.take(tag + 49, True)

    return {
        "settle one after the other": timed(lambda each: one.take(each + 1, False), list(range(MILLION // 2))),
        "settle one of 10^6 at random": timed(lambda each: any_order.take(each, False), order[: MILLION // 2]),
        "settle 50 at a time of 10^6": timed(lambda each: many.take(50 * each + 50, True), list(range(20_000))),
        "deliver 50, settle them at once": timed(deliver_and_settle, list(range(20_000))),
        "bytes a message, runs of 50": memory(made) / MILLION,
    }


BENCHES: dict[str, Callable[[], dict[str, Any]]] = {
    "set": bench_set, "map": bench_map, "runs": bench_runs, "lengths": bench_lengths, "tags": bench_tags,
}  # fmt: skip


def main(names: list[str]) -> None:
    unknown = sorted({*names} - {*BENCHES})
    if unknown:
        sys.exit(f"bench_ranges: no '{unknown[0]}' (there are: {', '.join(BENCHES)})")
    print(json.dumps({name: BENCHES[name]() for name in names or BENCHES}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
