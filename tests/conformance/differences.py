"""Where Coterie and RabbitMQ (3.10) answer differently, and why: the one place where that is known.

A test that is named here is expected to fail against a broker that calls itself RabbitMQ.
"""

from __future__ import annotations

from typing import Final

_NO_WORD: Final = "RabbitMQ drops the connection without a word; the reply code says what is wrong"

RABBITMQ: Final[dict[str, str]] = {
    "test_a_mechanism_that_is_not_offered_is_refused": _NO_WORD,
    "test_what_cannot_be_agreed_on_is_refused": f"{_NO_WORD}, as later versions of RabbitMQ do",
    "test_channels_must_wait_until_the_client_has_introduced_itself": _NO_WORD,
    "test_a_step_that_is_not_due_is_refused": _NO_WORD,
    "test_a_method_that_does_not_exist_is_refused": _NO_WORD,
    "test_a_class_that_does_not_exist_is_refused": _NO_WORD,
    "test_a_table_that_makes_no_sense_is_refused": _NO_WORD,
    "test_a_message_that_was_under_way_when_the_channel_closed_is_dropped": (
        "RabbitMQ still awaits the rest of it, on a channel of which everything else is ignored"
    ),
    "test_a_body_that_is_longer_than_announced_is_refused": "RabbitMQ goes on reading it as a body without an end",
    "test_properties_that_make_no_sense_are_refused": "RabbitMQ calls it an internal error (541)",
    "test_a_message_that_is_too_large_is_refused_before_it_has_come": "RabbitMQ reads all of it first",
}
"""By the name of the test."""
