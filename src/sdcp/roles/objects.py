"""Objects of a session in the multi-level cache: token arrays by reference (D11, D20), names of its KV (D44)."""

from __future__ import annotations

import secrets

from sdcp.errors import InvalidContent, MalformedBody, Overloaded
from sdcp.http.resources import encode_id
from sdcp.machines.effects import FetchTokens
from sdcp.machines.inputs import TokensFetched, TokensUnavailable
from sdcp.messages.fields import TOKENS
from sdcp.ports import Cache, ObjectMissingError, StoreUnavailableError
from sdcp.wire import cbor


async def fetch_tokens(cache: Cache, effect: FetchTokens) -> TokensFetched | TokensUnavailable:
    """Perform FetchTokens: 503 for what cannot be had now, 422 for what is no such object (D20)."""
    ref = effect.ref
    if not cache.allows(ref):
        return TokensUnavailable(
            ref, InvalidContent(f"{ref} is no object under a cache prefix that is configured here.")
        )
    try:
        data = await cache.fetch(ref, at_most=effect.at_most)
        return TokensFetched(ref, TOKENS.parse(cbor.decode(bytes(data), limit=effect.at_most)))
    except (ObjectMissingError, StoreUnavailableError) as fault:
        return TokensUnavailable(ref, Overloaded(f"{ref} cannot be fetched now: {fault}"))
    except MalformedBody as fault:
        return TokensUnavailable(ref, InvalidContent(f"{ref} is not one CBOR array of tokens: {fault.detail}"))
    except ValueError as fault:
        return TokensUnavailable(ref, InvalidContent(f"{ref} is not one CBOR array of tokens: {fault}"))


def new_kv_name(session: bytes) -> str:
    """Name an object for the KV of a session: the session, then 128 random bits."""
    return f"{_kv_prefix(session)}{secrets.token_urlsafe(16)}"


def is_kv_of(session: bytes, ref: str) -> bool:
    """Tell whether a URI names KV of this session: whoever deletes what a log names deletes nothing of others."""
    return ref.rpartition("/")[2].startswith(_kv_prefix(session))


def _kv_prefix(session: bytes) -> str:
    return f"kv-{encode_id(session)}-"
