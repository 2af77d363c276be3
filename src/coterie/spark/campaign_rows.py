"""The rows that come back from the tasks of a campaign: as Spark is told of them, and as Arrow has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from coterie.spark.campaign_runs import Outcome

if TYPE_CHECKING:
    import pyarrow as pa

OUTCOME_DDL = (
    "seed bigint, events bigint, sim_seconds double, cpu_seconds double, members int, planned int, "
    "faults map<string,bigint>, rules map<string,bigint>, violations array<struct<property:string,text:string>>, "
    "violation_count bigint, plan string, trace binary"
)
CATCH_DDL = "name string, caught bigint, runs bigint, events bigint, cpu_seconds double, others array<string>"


def outcome_batch(outcomes: Sequence[Outcome]) -> pa.RecordBatch:
    import pyarrow as pa

    rows = [
        {
            "seed": outcome.seed,
            "events": outcome.events,
            "sim_seconds": outcome.sim_seconds,
            "cpu_seconds": outcome.cpu_seconds,
            "members": outcome.members,
            "planned": outcome.planned,
            "faults": list(outcome.faults.items()),
            "rules": list(outcome.rules.items()),
            "violations": [{"property": name, "text": text} for name, text in outcome.violations],
            "violation_count": outcome.violation_count,
            "plan": outcome.plan,
            "trace": outcome.trace,
        }
        for outcome in outcomes
    ]
    return pa.RecordBatch.from_pylist(rows, schema=outcome_schema())


def catch_batch(
    mutation: str, caught: int | None, runs: int, events: int, cpu_seconds: float, others: list[str]
) -> pa.RecordBatch:
    import pyarrow as pa

    row = {
        "name": mutation,
        "caught": caught,
        "runs": runs,
        "events": events,
        "cpu_seconds": cpu_seconds,
        "others": others,
    }
    return pa.RecordBatch.from_pylist([row], schema=catch_schema())


def outcome_schema() -> pa.Schema:
    """OUTCOME_DDL, as Arrow has it."""
    import pyarrow as pa

    counts = pa.map_(pa.string(), pa.int64())
    violation = pa.struct([("property", pa.string()), ("text", pa.string())])
    return pa.schema(
        [
            ("seed", pa.int64()),
            ("events", pa.int64()),
            ("sim_seconds", pa.float64()),
            ("cpu_seconds", pa.float64()),
            ("members", pa.int32()),
            ("planned", pa.int32()),
            ("faults", counts),
            ("rules", counts),
            ("violations", pa.list_(violation)),
            ("violation_count", pa.int64()),
            ("plan", pa.string()),
            ("trace", pa.binary()),
        ]
    )


def catch_schema() -> pa.Schema:
    """CATCH_DDL, as Arrow has it."""
    import pyarrow as pa

    return pa.schema(
        [
            ("name", pa.string()),
            ("caught", pa.int64()),
            ("runs", pa.int64()),
            ("events", pa.int64()),
            ("cpu_seconds", pa.float64()),
            ("others", pa.list_(pa.string())),
        ]
    )
