"""Backups: a second one copies what is new, one that was cut off is none, and an altered byte is found and named."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_store_offline import COUNT, on_real_disk

from coterie.broker.log_store import StoreSettings
from coterie.errors import CoterieError, UserError
from coterie.node.backup import restoring
from coterie.node.backup.copying import Copied, copy, manifest_of, manifests
from coterie.node.backup.manifest import decode
from coterie.node.backup.source import Facts
from coterie.node.backup.stopped import stopped_source
from coterie.node.backup.target import FolderTarget, Target, target_of
from coterie.runtime.aio import run

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
HEAD = b"a header with bytes by chance".ljust(200, b".")


class Files:
    """A source in memory."""

    def __init__(self, **files: bytes) -> None:
        self.files = {name.replace("_", "."): data for name, data in files.items()}
        self.fails_at = ""

    @property
    def facts(self) -> Facts:
        return Facts("a", "x", "1.2", 0, tuple((name, len(data)) for name, data in self.files.items()))

    def read(self, name: str, start: int, size: int) -> bytes:
        if name == self.fails_at:
            raise CoterieError("the node is gone")
        return self.files[name][start : start + min(size, 1000)]  # as an answer may be shorter than what was asked for


def copied(source: Files, target: Target, number: int) -> Copied:
    return copy(source, target, now=BEGAN + timedelta(seconds=number))


def content(target: Target, id: str = "") -> dict[str, bytes]:
    return {
        file.name: b"".join(restoring.fetch(target, file, 0, piece) for piece in file.pieces)
        for file in manifest_of(target, id).files
    }


def test_a_second_backup_copies_only_what_is_new_and_both_can_be_read(tmp_path: Path) -> None:
    target = FolderTarget(tmp_path)
    first = Files(a_seg=HEAD + b"1" * 5000, b_seg=HEAD[::-1] + b"2" * 300)
    copied(first, target, 1)
    then = Files(a_seg=first.files["a.seg"], b_seg=first.files["b.seg"] + b"3" * 70, c_seg=b"new")
    found = copied(then, target, 2)
    assert (found.bytes, found.reused) == (73, 5700)
    ids = manifests(target)
    assert [content(target, id) for id in ids] == [first.files, then.files]


def test_a_file_of_the_same_name_that_begins_otherwise_is_another_file(tmp_path: Path) -> None:
    target = FolderTarget(tmp_path)
    copied(Files(a_seg=HEAD + b"1" * 500), target, 1)
    other = Files(a_seg=HEAD[::-1] + b"1" * 500)
    assert copied(other, target, 2).reused == 0
    assert content(target) == other.files


def test_what_an_earlier_backup_lacks_meanwhile_is_copied_again(tmp_path: Path) -> None:
    target, source = FolderTarget(tmp_path), Files(a_seg=HEAD + b"1" * 500)
    before = copied(source, target, 1).manifest
    (tmp_path / before.files[0].pieces[0].path).unlink()
    assert copied(source, target, 2).reused == 0
    assert content(target, before.id) == source.files


def test_a_backup_that_was_interrupted_is_none_and_the_next_one_goes_on(tmp_path: Path) -> None:
    target, source = FolderTarget(tmp_path), Files(a_seg=HEAD + b"1" * 500, b_seg=b"2")
    source.fails_at = "b.seg"
    with pytest.raises(CoterieError, match="the node is gone"):
        copied(source, target, 1)
    with pytest.raises(UserError, match="there is no backup"):
        manifest_of(target)
    source.fails_at = ""
    copied(source, target, 2)
    assert content(target) == source.files


def test_a_source_that_ends_too_early_makes_no_backup(tmp_path: Path) -> None:
    class Short(Files):
        @property
        def facts(self) -> Facts:
            return Facts("a", "", "", 0, (("a.seg", 999),))

    with pytest.raises(CoterieError, match=r"a\.seg ends at 4 bytes"):
        copied(Short(a_seg=b"1234"), FolderTarget(tmp_path), 1)
    assert manifests(FolderTarget(tmp_path)) == []


def test_a_manifest_says_if_a_byte_of_it_was_altered(tmp_path: Path) -> None:
    data = copied(Files(a_seg=HEAD), FolderTarget(tmp_path), 1).manifest.encode()
    for at in range(0, len(data), 7):
        altered = bytearray(data)
        altered[at] ^= 1
        try:
            assert decode(bytes(altered), "") == decode(data, "")  # white space, or the like
        except CoterieError:
            continue


def test_an_unreadable_manifest_is_named_and_the_next_backup_does_not_rely_on_it(tmp_path: Path) -> None:
    target, source = FolderTarget(tmp_path), Files(a_seg=HEAD)
    path = tmp_path / copied(source, target, 1).manifest.path
    path.write_bytes(path.read_bytes().replace(b'"x"', b'"y"'))
    with pytest.raises(CoterieError, match=path.name):
        manifest_of(target)
    assert copied(source, target, 2).manifest.files
    assert content(target) == source.files


# A real store.


@pytest.fixture
def node(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    on_real_disk(folder)
    (folder / "node.name").write_text("a\n")
    return folder


@pytest.fixture
def target(node: Path, tmp_path: Path) -> Target:
    found = FolderTarget(tmp_path / "backups")
    with stopped_source(node, StoreSettings()) as source:
        copy(source, found)
    return found


def verify(target: Target) -> restoring.Restored:
    return run(restoring.verify(target, manifest_of(target), StoreSettings(), _untold))


def restore(target: Target, folder: Path, accept_loss: bool = False) -> restoring.Restored:
    return run(restoring.restore(target, manifest_of(target), folder, "a", StoreSettings(), _untold, accept_loss))


def _untold(done: int, of: int) -> None:
    assert 0 <= done <= of


def test_a_stopped_nodes_folder_is_backed_up_verified_and_restored_with_every_message(
    target: Target, tmp_path: Path
) -> None:
    folder = tmp_path / "restored"
    assert verify(target).queues == {("/", "q", 1): COUNT}
    assert not folder.exists()
    found = restore(target, folder)
    assert (found.queues, found.cluster, found.lost) == ({("/", "q", 1): COUNT}, "", ())
    assert sorted(each.name for each in folder.iterdir()) == ["log", "node.lock", "node.name"]
    assert (folder / "node.name").read_text() == "a\n"
    with stopped_source(folder, StoreSettings()) as source:
        copy(source, FolderTarget(tmp_path / "again"))
    assert verify(FolderTarget(tmp_path / "again")).queues == {("/", "q", 1): COUNT}


def test_a_folder_with_data_in_it_is_not_touched(target: Target, node: Path) -> None:
    before = {path: path.read_bytes() for path in (node / "log").iterdir()}
    with pytest.raises(UserError, match="has data in it"):
        restore(target, node)
    assert {path: path.read_bytes() for path in (node / "log").iterdir()} == before


def test_an_altered_byte_of_any_piece_is_found_and_the_file_is_named(target: Target, tmp_path: Path) -> None:
    for file in manifest_of(target).files:
        for piece in file.pieces:
            path = tmp_path / "backups" / piece.path
            data = path.read_bytes()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 4]))
            with pytest.raises(CoterieError, match=f"of {file.name}: the piece is damaged"):
                verify(target)
            with pytest.raises(CoterieError, match=f"of {file.name}: the piece is damaged"):
                restore(target, tmp_path / "restored")
            assert not (tmp_path / "restored" / "log").exists()
            path.unlink()
            with pytest.raises(CoterieError, match=f"of {file.name}: the piece is missing"):
                verify(target)
            path.write_bytes(data)


def test_an_interrupted_restore_leaves_no_store_and_the_next_one_is_whole(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    folder = tmp_path / "restored"
    for interrupted in ("_write", "_look", "_begin", "keep_name"):

        def crash(*given: object) -> None:
            raise Crash

        with monkeypatch.context() as patched:
            patched.setattr(restoring, interrupted, crash)
            with pytest.raises(Crash):
                restore(target, folder)
        assert not (folder / "log").exists()
    restore(target, folder)
    assert not (folder / restoring.UNFINISHED).exists()
    with stopped_source(folder, StoreSettings()) as source:
        assert source.facts.files


def test_what_the_source_could_not_read_any_more_is_told_and_only_left_out_if_that_is_accepted(
    node: Path, tmp_path: Path
) -> None:
    segment = max((node / "log").glob("*.seg"), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[data.index(b"q:7:") + 5] ^= 1
    segment.write_bytes(data)
    target = FolderTarget(tmp_path / "backups")
    with stopped_source(node, StoreSettings()) as source:
        copy(source, target)
    assert verify(target).lost
    with pytest.raises(CoterieError, match="its source was damaged"):
        restore(target, tmp_path / "restored")
    assert restore(target, tmp_path / "restored", accept_loss=True).lost
    with stopped_source(tmp_path / "restored", StoreSettings()) as source:
        copy(source, FolderTarget(tmp_path / "again"))
    assert verify(FolderTarget(tmp_path / "again")).lost == ()


# Targets.


def test_any_url_that_fsspec_knows_is_a_target(node: Path, tmp_path: Path) -> None:
    target = target_of("memory://backups/shop")
    with stopped_source(node, StoreSettings()) as source:
        first = copy(source, target)
        second = copy(source, target)
    assert first.reused == 0
    assert second.bytes < first.bytes
    assert verify(target).queues == {("/", "q", 1): COUNT}
    assert target.read("nothing") is None
    assert target.size("nothing") is None


def test_without_fsspec_a_url_is_refused_with_what_to_install_and_a_folder_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UserError, match=r"pip install 'coterie\[backup\]'"):
        target_of("s3://bucket/shop")
    target_of(str(tmp_path)).write("a/b", b"c")
    assert (tmp_path / "a" / "b").read_bytes() == b"c"


def test_a_url_of_a_kind_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="nonsense://x"):
        target_of("nonsense://x")


def test_a_target_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CoterieError, match="cannot be written"):
        FolderTarget(tmp_path / "file").write("a/b", b"c")


# Cuts of a node that runs.


def test_what_is_written_while_a_backup_runs_is_in_none_of_its_files(tmp_path: Path) -> None:
    import asyncio

    from store_rig import Line, body, persistent

    from coterie.broker.log_store import LogStore
    from coterie.console.backups import Backups
    from coterie.console.refusals import Refused
    from coterie.runtime.aio import AioRuntime

    async def told(call: Callable[[Callable[[object], None]], None]) -> object:
        future = asyncio.get_running_loop().create_future()
        call(future.set_result)
        return await future

    async def synced(store: LogStore) -> None:
        await told(lambda done: store.when_synced(store.written(), lambda: done(None)))

    async def scenario() -> dict[str, bytes]:
        runtime = AioRuntime("a", disk_dir=tmp_path / "node")
        store = LogStore(runtime, StoreSettings(reserve_bytes=0, segment_bytes=2000, snapshot_bytes=1000))
        await told(store.recover)
        line, backups = Line(store, "q"), Backups()
        for number in range(1, 101):
            line.put(persistent(body("q", number)))
            await synced(store)
        line.put(persistent(body("q", 999)))  # not on disk
        cut = await backups.begin(tmp_path / "node", store)
        line.take([entry for entry in line.entries.values() if entry.position < 90])
        for number in range(102, 200):
            line.put(persistent(body("q", number)))
            await synced(store)
        await asyncio.sleep(0)
        files = {}
        for name, (_, size) in cut.files.items():
            data = b""
            while len(data) < size:
                data += await backups.read(cut.id, name, len(data), 700)
            files[name] = data
        backups.end(cut.id)
        with pytest.raises(Refused):
            await backups.read(cut.id, name, 0, 1)
        await runtime.close()
        return files

    files = run(scenario())
    target = FolderTarget(tmp_path / "backups")
    source = Files()
    source.files = files
    copy(source, target)
    assert verify(target).queues == {("/", "q", 1): 100}
    assert b"q:999:" not in b"".join(files.values())


def test_the_answer_of_a_list_says_which_manifest_is_damaged(
    target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from coterie.cli import main

    (tmp_path / "backups" / "backups" / "9.json").write_text("{}")
    assert main(["backup", str(tmp_path / "backups"), "--list", "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)["backups"]
    assert [row.get("problem") is None for row in rows] == [True, False]
    assert "9.json" in rows[1]["problem"]


def test_a_node_holds_two_cuts_at_a_time_and_lets_go_of_their_files(tmp_path: Path) -> None:
    from coterie.broker.log_store import LogStore
    from coterie.console.backups import OPEN_MAX, Backups
    from coterie.console.refusals import Refused
    from coterie.runtime.aio import AioRuntime

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def scenario() -> None:
        runtime = AioRuntime("a", disk_dir=tmp_path)
        store = LogStore(runtime, StoreSettings(reserve_bytes=0))
        ready = runtime.future()
        store.recover(ready.set_result)
        await ready
        backups, before = Backups(), open_files()
        cuts = [await backups.begin(tmp_path, store) for _ in range(OPEN_MAX)]
        with pytest.raises(Refused, match="are under way"):
            await backups.begin(tmp_path, store)
        backups.end(cuts[0].id)
        await backups.begin(tmp_path, store)
        assert open_files() > before
        backups.close()
        assert open_files() == before
        await runtime.close()

    run(scenario())
