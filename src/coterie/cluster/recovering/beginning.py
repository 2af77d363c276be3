"""The state that makes a store the beginning of a new cluster: a cluster that nobody else is of, with one voter."""

from __future__ import annotations

from typing import Final

from coterie.broker.storage import Record
from coterie.cluster.membership import Era
from coterie.cluster.recovering.candidate import STATE, Candidate

EPOCHS_AHEAD: Final = 10_000
"""More than the old cluster has begun since this store was cut off from it: places of the log, and numbers of queues
that follow from them, are never given twice. Sixteen bits of an epoch count there, so it must not be many of these."""
ID_SIZE: Final = 8
Records = dict[tuple[str, str], Record | None]


def new_cluster(old: Candidate, name: str, random: bytes, wall: float, mark: str) -> tuple[str, Records]:
    """Its identity, and the records that the store is to have. `name`: of the node that is to run on it; `mark`: the
    kind of the record that tells what was done."""
    cluster = f"{name}-{random.hex()}"
    epoch, index = old.progress.epoch + EPOCHS_AHEAD, old.progress.index
    state: Record = {
        **old.state, "epoch": epoch, "cluster": cluster, "voters": [name], "updating": False, "damaged": False,
        "era": Era().to_json(), "crashed": True, "astray": False,
    }  # fmt: skip
    told: Record = {
        "from": old.cluster, "voters": list(old.voters), "epoch": old.progress.epoch, "index": index, "at": wall,
        "by": name,
    }  # fmt: skip
    return cluster, {STATE: state, (mark, cluster): told}
