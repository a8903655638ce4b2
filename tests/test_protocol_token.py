"""Tokens as text: round trip, and every way to copy one wrongly."""

from __future__ import annotations

import base64
import string

import pytest
from any_text import any_text
from hypothesis import given
from hypothesis import strategies as st

from edgelink.errors import TokenError
from edgelink.protocol.token import PREFIX, Token, split_address

URL_SAFE = string.ascii_letters + string.digits + "-_"
TOKEN = Token(
    token_id="abcd2345",
    secret="S" * 32,
    ca_sha256=bytes(range(32)),
    registry_verify_key=base64.b64encode(bytes(32)).decode(),
    network_id="n" * 16,
    addresses=("203.0.113.5:8883", "relay.example.org:8883", "[2001:db8::1]:8883"),
)
TEXT = TOKEN.encode()

tokens = st.builds(
    Token,
    token_id=st.text(string.ascii_lowercase + "234567", min_size=8, max_size=8),
    secret=st.text(URL_SAFE, min_size=22, max_size=64),
    ca_sha256=st.binary(min_size=32, max_size=32),
    registry_verify_key=st.binary(min_size=32, max_size=32).map(lambda key: base64.b64encode(key).decode()),
    network_id=st.text(string.ascii_lowercase, min_size=16, max_size=16),
    addresses=st.lists(st.ip_addresses(v=4).map(lambda ip: f"{ip}:8883"), min_size=1, max_size=5).map(tuple),
)


@given(tokens)
def test_round_trip(token: Token) -> None:
    """Whatever a token holds, the machine that gets it reads the same."""
    text = token.encode()
    assert Token.parse(text) == token
    assert set(text) <= set(URL_SAFE)


@given(st.integers(0, len(TEXT) - 1))
def test_a_cut_off_token_is_called_that(length: int) -> None:
    """Every proper beginning of a token is recognised as cut off, so that one knows to copy the rest."""
    with pytest.raises(TokenError, match="cut off" if length else "empty"):
        Token.parse(TEXT[:length])


@given(st.integers(len(PREFIX), len(TEXT) - 1), st.sampled_from(URL_SAFE))
def test_one_wrong_character_is_noticed(place: int, character: str) -> None:
    """No single typing mistake goes unnoticed, not even in bits that base64 ignores."""
    if TEXT[place] == character:
        return
    with pytest.raises(TokenError, match=r"mistyped|cut off"):
        Token.parse(TEXT[:place] + character + TEXT[place + 1 :])


@given(st.text(URL_SAFE, min_size=1, max_size=9))
def test_something_appended_is_noticed(tail: str) -> None:
    """Two words pasted together are not taken for a token."""
    with pytest.raises(TokenError):
        Token.parse(TEXT + tail)


@given(any_text(200))
def test_any_text_is_a_token_or_a_token_error(text: str) -> None:
    """Whatever is pasted, the answer is a TokenError with a hint, never a traceback."""
    for candidate in (text, PREFIX + text):
        with pytest.raises(TokenError) as caught:
            Token.parse(candidate)
        assert caught.value.hint


def test_a_character_that_cannot_be_is_named() -> None:
    """A stray character is shown with its place."""
    with pytest.raises(TokenError, match=r"'\*' at place 11"):
        Token.parse(TEXT[:10] + "*" + TEXT[11:])


def test_white_space_does_not_matter() -> None:
    """A token that a mail program broke into lines still works."""
    broken = "\n  ".join(TEXT[start : start + 60] for start in range(0, len(TEXT), 60))
    assert Token.parse(f" {broken}\n") == TOKEN


def test_the_secret_is_not_in_the_repr() -> None:
    """A token in a traceback does not give itself away."""
    assert TOKEN.secret not in repr(TOKEN)


def test_addresses_become_endpoints() -> None:
    """Host and port, DNS names and bracketed IPv6 included."""
    assert TOKEN.endpoints == (("203.0.113.5", 8883), ("relay.example.org", 8883), ("2001:db8::1", 8883))
    assert TOKEN.broker_username == "token-abcd2345"


@pytest.mark.parametrize("address", ["relay", "relay:", "relay:0", "relay:65536", ":1", "a b:1", "::1:8883", "a:1x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """Only host:port is an address."""
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)
