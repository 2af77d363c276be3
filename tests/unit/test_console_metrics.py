"""Prometheus' text format: names, escaping, histograms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coterie.console.exposition import Exposition, escaped
from coterie.durations import BOUNDS, Durations


def test_a_family_has_help_type_and_its_samples_together() -> None:
    out = Exposition()
    out.family("m_total", "counter", "how\nmany \\", [({}, 1), ({"queue": "q", "vhost": "/"}, 2.5)])
    assert out.text() == (
        '# HELP m_total how\\nmany \\\\\n# TYPE m_total counter\nm_total 1\nm_total{queue="q",vhost="/"} 2.5\n'
    )


def test_what_is_not_known_is_left_out_and_its_family_too() -> None:
    out = Exposition()
    out.one("unknown", "gauge", "x", None)
    out.family("some", "gauge", "x", [({"a": "1"}, None), ({"a": "2"}, 0)])
    assert out.text() == '# HELP some x\n# TYPE some gauge\nsome{a="2"} 0\n'


def unescaped(text: str) -> str:
    """As a reader of the format would: no quote and no line's end is left, and every backslash begins a pair."""
    found, letters = [], iter(text)
    for letter in letters:
        assert letter not in '"\n'
        found.append({"\\": "\\", "n": "\n", '"': '"'}[next(letters)] if letter == "\\" else letter)
    return "".join(found)


@given(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\\"\nn')))
def test_a_labels_value_reads_as_what_it_was(value: str) -> None:
    assert unescaped(escaped(value)) == value


def test_a_histogram_counts_upwards_and_ends_with_everything() -> None:
    durations = Durations()
    for seconds in (0.0, 0.0005, 0.003, 0.003, 99.0):
        durations.add(seconds)
    out = Exposition()
    out.durations("took_seconds", "x", durations)
    lines = out.text().splitlines()[2:]
    assert lines[0] == 'took_seconds_bucket{le="0.0005"} 2'
    assert lines[3] == 'took_seconds_bucket{le="0.005"} 4'
    assert lines[len(BOUNDS) - 1 : len(BOUNDS) + 1] == [
        'took_seconds_bucket{le="2.5"} 4',
        'took_seconds_bucket{le="+Inf"} 5',
    ]
    assert lines[-2:] == ["took_seconds_sum 99.0065", "took_seconds_count 5"]
    assert (durations.count, durations.last) == (5, 99.0)
