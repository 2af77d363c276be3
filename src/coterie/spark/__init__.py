"""The data pipeline: audits of traces and campaigns of simulated runs, as Spark jobs.

Needs the extra `spark` (`pip install 'coterie[spark]'`). Everything is written against the DataFrame API, so that the
same job runs in this process (`local[*]`), on a standalone cluster and, where it can, through Spark Connect. Nothing
that grows with the data comes back to the driver.
"""
