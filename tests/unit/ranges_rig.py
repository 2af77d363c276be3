"""What the tests of ranges share: places where blocks meet, and bytes that somebody has altered."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

BLOCK = 4096
SPAN = 5 * BLOCK
"""Models are plain Python sets and lists: they look at so many positions."""
ORIGINS = (0, 1_000 * BLOCK, 2**63 - SPAN)
"""Of what they look at: the first positions, some, the last ones."""

places = st.one_of(
    st.integers(0, SPAN),
    st.builds(
        lambda block, near: min(max(block * BLOCK + near, 0), SPAN), st.integers(0, SPAN // BLOCK), st.integers(-3, 3)
    ),
)
spans = st.tuples(places, places).map(lambda pair: (min(pair), max(pair)))
short_spans = st.tuples(places, st.integers(0, 100)).map(lambda pair: (pair[0], min(pair[0] + pair[1], SPAN)))
block_spans = spans.map(lambda span: (span[0] // BLOCK * BLOCK, span[1] // BLOCK * BLOCK))
any_spans = st.one_of(spans, short_spans, block_spans)


def ranges_of(positions: Iterable[int]) -> list[tuple[int, int]]:
    """Plainly, one by one."""
    found: list[tuple[int, int]] = []
    for position in sorted(positions):
        if found and found[-1][1] == position:
            found[-1] = found[-1][0], position + 1
        else:
            found.append((position, position + 1))
    return found


@st.composite
def altered(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes cut, changed, doubled or added at a place."""
    at = draw(st.integers(0, len(data)))
    return draw(
        st.sampled_from(
            [
                data[:at],
                data[:at] + draw(st.binary(min_size=1, max_size=3)) + data[at:],
                data[:at] + draw(st.binary(min_size=1, max_size=2)) + data[at + 1 :],
                data[:at] + bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in data[at : at + 1]) + data[at + 1 :],
                data[:at] + data[at + draw(st.integers(1, 4)) :],
                data + data,
            ]
        )
    )
