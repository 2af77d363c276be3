"""A broker for the conformance tests: on a free port, which it prints, until its standard input ends. It has a disk, as
a broker in use does: what is durable is answered when it is written.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from coterie.amqp.server import Server
from coterie.broker.broker import Broker
from coterie.broker.log_store import LogStore
from coterie.broker.users import Permissions, Users
from coterie.runtime.aio import AioRuntime, run
from coterie.runtime.base import Endpoint


async def main(folder: Path) -> None:
    runtime = AioRuntime("conformance", disk_dir=folder)
    broker = Broker(runtime, store=LogStore(runtime))
    started: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    broker.start(started.set_result)
    assert await started is None
    users = Users(runtime, broker.store)
    users.restore(())
    added: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    users.put("limited", "limited", (), added.set_result)
    await added
    users.permit("limited", "/", Permissions("^limited", "^limited", "^limited"), lambda _: None)
    broker.add_vhost("closed", lambda _: None)
    server = Server(runtime, broker, users)
    listener = server.listen(Endpoint("127.0.0.1", 0))
    print(listener.endpoint.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runtime.close()


with tempfile.TemporaryDirectory() as folder:
    run(main(Path(folder)))
