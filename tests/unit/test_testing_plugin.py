"""The fixtures for pytest, used as a project that tests itself with them would."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
PLUGIN = ("-p", "coterie.pytest_plugin", "-p", "no:cacheprovider")

PRODUCER = """
import pika

def order(url, text):
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare("orders")
    channel.basic_publish("", "orders", text)
    connection.close()
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(producer=PRODUCER)
    return pytester


def test_each_test_has_an_empty_broker_and_all_have_the_same(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import pytest
        from producer import order

        ports = set()

        @pytest.mark.parametrize("number", range(3))
        def test_an_order_arrives(coterie_broker, number):
            ports.add(coterie_broker.port)
            assert coterie_broker.queues() == {}
            order(coterie_broker.url, b"tea")
            coterie_broker.wait_for("orders", ready=1)
            assert [message.text for message in coterie_broker.messages("orders")] == ["tea"]

        def test_it_was_one_broker():
            assert len(ports) == 1
        """
    )
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=4)


@pytest.mark.parametrize(("between", "left"), [("purge", 0), ("nothing", 1)])
def test_a_project_chooses_what_happens_between_tests(project: pytest.Pytester, between: str, left: int) -> None:
    project.makeini(f"[pytest]\ncoterie_between_tests = {between}\n")
    project.makepyfile(
        f"""
        from producer import order

        def test_an_order_arrives(coterie_broker):
            order(coterie_broker.url, b"tea")
            coterie_broker.wait_for("orders", ready=1)

        def test_the_next_one_finds_the_queue(coterie_broker):
            assert coterie_broker.queue("orders").exists
            assert coterie_broker.queue("orders").ready == {left}
        """
    )
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=2)


def test_a_choice_that_there_is_not_is_one_clear_line(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\ncoterie_between_tests = burn\n")
    result = project.runpytest_inprocess(*PLUGIN)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*coterie_between_tests must be one of reset, purge, nothing, not 'burn'*"])


def test_a_test_makes_brokers_of_its_own_with_the_projects_settings(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def coterie_settings():
            return {"broker": {"queues_max": 1}}
        """
    )
    project.makepyfile(
        """
        import pytest
        from pika.exceptions import AMQPError
        from producer import order

        def test_the_data_of_one_is_not_the_others(coterie_make_broker, tmp_path):
            first = coterie_make_broker(data=tmp_path / "data")
            second = coterie_make_broker()
            order(first.url, b"tea")
            first.wait_for("orders", ready=1)
            assert second.queues() == {}
            assert (tmp_path / "data").is_dir()

        def test_a_broker_that_a_test_stopped_is_there_for_the_next(coterie_broker):
            coterie_broker.stop()

        def test_the_next(coterie_broker):
            order(coterie_broker.url, b"tea")
            coterie_broker.wait_for("orders", ready=1)

        def test_a_cluster(coterie_make_cluster):
            cluster = coterie_make_cluster(3)
            order(cluster[0].url, b"tea")
            for broker in cluster:
                broker.wait_for("orders", ready=1)

        def test_settings_count(coterie_broker):
            import pika
            with pika.BlockingConnection(pika.URLParameters(coterie_broker.url)) as connection:
                channel = connection.channel()
                channel.queue_declare("first")
                with pytest.raises(AMQPError):
                    channel.queue_declare("second")
        """
    )
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=5)


def test_nothing_of_the_broker_is_loaded_before_a_test_asks_for_one(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import sys

        def test_nothing():
            assert "coterie.node.node" not in sys.modules
        """
    )
    project.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


def test_pytest_finds_the_plugin_by_the_packages_entry_point() -> None:
    """By the module's own name, so that `-p` means the same whether the package is installed or only on the path."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\n"coterie.pytest_plugin" = "coterie.pytest_plugin"\n' in text
