"""Configuration: four sources, one schema, and errors that name the place to correct."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from coterie.config import SECTIONS, NodeSettings, add_flags, flags_of, load_config, plain, spellings
from coterie.errors import UserError
from coterie.group.presets import preset
from coterie.group.stack import Layer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "node.toml"


def test_without_any_source_there_are_the_defaults() -> None:
    config = load_config(None, {}, {})
    assert config.node == NodeSettings()
    assert config.stack is None


def test_the_file_is_stronger_than_the_defaults_the_environment_than_the_file_and_flags_than_all(file: Path) -> None:
    file.write_text('[node]\nname = "file"\ngroup = "file"\nbind = "file:1"\n')
    env = {"COTERIE_NODE_GROUP": "env", "COTERIE_NODE_BIND": "env:2"}
    node = load_config(file, env, {"node": {"bind": "flag:3"}}).node
    assert (node.name, node.group, node.bind, node.stack) == ("file", "env", "flag:3", "reliable")


def test_a_list_is_an_array_in_toml_and_has_commas_elsewhere(file: Path) -> None:
    file.write_text('[node]\npeers = ["a:1", "b:2"]\n')
    assert load_config(file, {}, {}).node.peers == ("a:1", "b:2")
    assert load_config(None, {"COTERIE_NODE_PEERS": "c:3, d:4"}, {}).node.peers == ("c:3", "d:4")


def test_a_file_may_hold_a_stack_of_its_own(file: Path) -> None:
    file.write_text('[[stack]]\nprotocol = "TCP"\nport = 0\n[[stack]]\nprotocol = "NAKACK"\n')
    assert load_config(file, {}, {}).stack == (Layer("TCP", {"port": 0}), Layer("NAKACK", {}))


@pytest.mark.parametrize("source", ["environment", "flag"])
def test_a_preset_asked_for_in_a_stronger_place_replaces_the_stack_of_the_file(file: Path, source: str) -> None:
    file.write_text('[[stack]]\nprotocol = "TCP"\n')
    env = {"COTERIE_NODE_STACK": "reliable"} if source == "environment" else {}
    flags = {"node": {"stack": "reliable"}} if source == "flag" else {}
    config = load_config(file, env, flags)
    assert config.stack is None
    assert config.node.stack == "reliable"


def refusal(path: Path | None, env: dict[str, str] | None = None, flags: dict[str, object] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        load_config(path, env or {}, {"node": flags or {}})
    return str(caught.value)


def test_an_error_names_the_file_and_the_section(file: Path) -> None:
    file.write_text("[node]\nname = 7\n")
    assert refusal(file) == f"{file}, [node]: name must be a text, not 7"


def test_an_error_names_the_environment_variable() -> None:
    assert refusal(None, {"COTERIE_NODE_LOG_LEVEL": "loud"}) == (
        "environment, COTERIE_NODE_LOG_LEVEL: log_level must be one of debug, info, warning, error, not 'loud'"
    )


def test_an_error_names_the_flag() -> None:
    assert refusal(None, flags={"log_format": "xml"}) == (
        "command line, --log-format: log_format must be one of text, json, not 'xml'"
    )


def test_an_unknown_name_is_refused_with_the_one_that_was_probably_meant(file: Path) -> None:
    file.write_text('[node]\ngruop = "x"\n')
    assert "there is no setting 'gruop' (did you mean 'group'?)" in refusal(file)
    file.write_text("[nod]\n")
    assert "there is no section [nod] (did you mean 'node'?)" in refusal(file)
    assert "there is no setting 'bnd' (did you mean 'bind'?)" in refusal(None, {"COTERIE_NODE_BND": "x"})


def test_variables_that_belong_to_somebody_else_are_left_alone() -> None:
    assert load_config(None, {"COTERIE_HOME": "/", "PATH": "/bin", "COTERIE_NODES": "3"}, {}).node == NodeSettings()


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(file: Path) -> None:
    assert refusal(file) == f"{file}: cannot be read: No such file or directory"
    file.write_text("[node\n")
    assert f"{file}: not TOML: " in refusal(file)
    file.write_bytes(b'[node]\nname = "\xff"\n')
    assert refusal(file) == f"{file}: not UTF-8 text"


def test_a_section_must_be_a_section(file: Path) -> None:
    file.write_text("node = 3\n")
    assert "'node' must be a section, [node], not 3" in refusal(file)


def test_a_stack_and_the_name_of_a_preset_in_one_file_contradict_each_other(file: Path) -> None:
    file.write_text('[node]\nstack = "reliable"\n[[stack]]\nprotocol = "TCP"\n')
    assert "leave one out" in refusal(file)


def test_a_stack_without_protocols_is_refused(file: Path) -> None:
    file.write_text("stack = 3\n")
    assert "no [[stack]] tables" in refusal(file)


def test_every_setting_has_a_flag_and_what_was_given_by_flags_is_read_back() -> None:
    parser = argparse.ArgumentParser()
    for section in SECTIONS:
        add_flags(parser, section)
    text = parser.format_help()
    for item in spellings():
        assert item.flag in text
    options = parser.parse_args(["--name", "alpha", "--log-level", "debug", "--peers", "a:1,b:2"])
    given = flags_of(options)
    assert given == {"node": {"name": "alpha", "log_level": "debug", "peers": "a:1,b:2"}}
    assert load_config(None, {}, given).node.peers == ("a:1", "b:2")


def test_values_are_shown_as_a_user_would_write_them() -> None:
    assert [plain(value) for value in (True, 0.5, 2.0, ("a", 1), (), None, "x")] == [
        "true", "0.5", "2", "a,1", "", "", "x",
    ]  # fmt: skip


# The secret.

SECRET = "a secret of the whole cluster"


def test_the_secret_is_read_from_its_file_without_the_end_of_the_line(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    assert load_config(None, {"COTERIE_NODE_SECRET_FILE": str(tmp_path / "secret")}, {}).node.secret == SECRET


def test_the_nodes_secret_is_on_every_layer_that_takes_one(file: Path) -> None:
    config = load_config(None, {"COTERIE_NODE_SECRET": SECRET}, {})
    assert [(layer.protocol, layer.settings) for layer in config.layers() if layer.settings] == [
        ("TCP", {"secret": SECRET})
    ]
    file.write_text('[[stack]]\nprotocol = "UDP"\nttl = 1\n[[stack]]\nprotocol = "MULTICAST"\n')
    config = load_config(file, {"COTERIE_NODE_SECRET": SECRET}, {})
    assert config.layers() == [Layer("UDP", {"ttl": 1, "secret": SECRET}), Layer("MULTICAST", {})]


def test_a_layers_own_secret_is_stronger_than_the_nodes(file: Path) -> None:
    file.write_text('[[stack]]\nprotocol = "TCP"\nsecret = "its own"\n')
    config = load_config(file, {"COTERIE_NODE_SECRET": SECRET}, {})
    assert config.layers() == [Layer("TCP", {"secret": "its own"})]


def test_without_a_secret_the_stack_is_the_preset_as_it_is() -> None:
    assert load_config(None, {}, {}).layers() == preset("reliable")


def test_a_secret_file_that_is_no_good_is_refused_with_what_to_do(tmp_path: Path) -> None:
    missing, empty, binary = tmp_path / "missing", tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n")
    binary.write_bytes(b"\xff\xfe")
    assert "missing: cannot be read: No such file" in refusal(None, {"COTERIE_NODE_SECRET_FILE": str(missing)})
    assert "is empty: make one with `openssl rand -hex 32`" in refusal(None, {"COTERIE_NODE_SECRET_FILE": str(empty)})
    assert "not UTF-8 text" in refusal(None, {"COTERIE_NODE_SECRET_FILE": str(binary)})
    both = {"COTERIE_NODE_SECRET_FILE": str(empty), "COTERIE_NODE_SECRET": SECRET}
    assert refusal(None, both) == "both 'secret' and 'secret_file' say what the secret is: leave one out"


def test_a_secret_is_not_shown(file: Path) -> None:
    assert SECRET not in repr(load_config(None, {"COTERIE_NODE_SECRET": SECRET}, {}).node)
    file.write_text("[node]\nsecret = 1234567890123456\n")
    assert refusal(file) == f"{file}, [node]: secret must be a text"
