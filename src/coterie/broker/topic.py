"""Topic patterns: words between dots; `*` is any one word, `#` any number of words, also none.

A trie of words. Matching follows all that may match at once, word by word, so that its cost is bounded by the number of
words times the number of places in the trie that they reach, however many `#` there are. Who binds with many long
patterns makes that much all the same: so it is counted, and ends at a limit.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.errors import ProtocolError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Node(Generic[K, V]):
    __slots__ = ("children", "ends", "many")

    def __init__(self, many: bool = False) -> None:
        self.children: dict[str, _Node[K, V]] = {}
        self.ends: dict[K, V] = {}
        self.many = many
        """It is a `#`: it may eat any number of words."""


class TopicTrie(Generic[K, V]):
    """Patterns with values, each under a key of its own."""

    def __init__(self) -> None:
        self._root: _Node[K, V] = _Node()

    def add(self, pattern: str, key: K, value: V) -> None:
        node = self._root
        for word in _words(pattern):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = _Node(word == "#")
            node = child
        node.ends[key] = value

    def remove(self, pattern: str, key: K) -> None:
        """And the branches that bear nothing any more."""
        path = [self._root]
        words = _words(pattern)
        for word in words:
            child = path[-1].children.get(word)
            if child is None:
                return
            path.append(child)
        path[-1].ends.pop(key, None)
        while words and not path[-1].ends and not path[-1].children:
            path.pop()
            del path[-1].children[words.pop()]

    def match(self, key: str, most: int) -> tuple[list[V], int]:
        """The values of all patterns that match a routing key, one that two patterns have twice; and how many steps it
        took. Raises TooManySteps if these would be more than `most`."""
        places = _reach([self._root])
        steps = len(places)
        for word in _words(key):
            after: list[_Node[K, V]] = []
            for node in places:
                if node.many:
                    after.append(node)
                for step in (word, "*"):
                    child = node.children.get(step)
                    if child is not None and not child.many:  # a key's own `#` is a word, not a pattern
                        after.append(child)
            places = _reach(after)
            steps += len(places)
            if steps > most:
                raise TooManySteps(key, most)
            if not places:
                break
        return [value for node in places for value in node.ends.values()], steps


class TooManySteps(ProtocolError):
    """A routing key with which nothing can be published."""

    def __init__(self, key: str, most: int) -> None:
        super().__init__(
            PRECONDITION_FAILED,
            f"routing key '{key[:80]}' takes more than {most:,} steps through the patterns that are bound"
            " (broker.topic_steps_max)",
        )


def _reach(nodes: list[_Node[K, V]]) -> dict[_Node[K, V], None]:
    """These and, since `#` may be no word at all, what comes behind one."""
    places: dict[_Node[K, V], None] = {}
    for node in nodes:
        below: _Node[K, V] | None = node
        while below is not None and below not in places:
            places[below] = None
            below = below.children.get("#")
    return places


def _words(text: str) -> list[str]:
    return text.split(".") if text else []
