"""What one peer may cost us, as numbers: sizes, counts and patience. Times are in seconds, sizes in bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of a server. A peer has a certificate that we trust; these hold when it errs or is taken over."""

    max_connections: int = 512
    max_streams: int = 256  # concurrent, per connection (SETTINGS_MAX_CONCURRENT_STREAMS)
    max_requests: int = 4096  # concurrent, on all connections; one more is answered 503
    max_header_list: int = 16 * 1024  # RFC 9113 section 6.5.2; a longer one is answered 431
    stream_window: int = 1 << 20
    connection_window: int = 16 << 20
    resets: tuple[int, int] = (500, 50)  # RST_STREAM frames: burst, and per second
    glitches: tuple[int, int] = (1000, 100)  # frames that a sound client does not send: burst, and per second
    handshake_s: float = 10.0
    patience_s: float = 30.0  # how long a peer may keep us waiting for its body, or for reading ours, ...
    min_bytes_per_s: float = 16 * 1024  # ... beyond the time that its bytes take at this rate
    idle_s: float = 600.0  # without any stream
    silence_s: float = 30.0  # before a PING, and again before the peer is given up
    close_s: float = 5.0  # for closing TLS, and for the last answers when a drain is over

    @property
    def tick_s(self) -> float:
        """How often deadlines are checked."""
        return min(1.0, self.patience_s / 4, self.idle_s / 4, self.silence_s / 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of a client, and how it tries again."""

    connect_s: float = 10.0
    deadline_s: float = 30.0  # of a request, all tries together, unless it says otherwise
    max_bytes: int = 16 << 20  # of an answer's body, unless the request says otherwise
    max_header_list: int = 64 * 1024
    max_streams: int = 1000  # until the server has said how many
    stream_window: int = 1 << 20
    connection_window: int = 16 << 20
    silence_s: float = 20.0  # before a PING, and again before the server is given up
    idle_s: float = 300.0  # without any stream: the connection is closed
    attempts: int = 4  # of an idempotent request
    first_pause_s: float = 0.05  # the most before the second try; it doubles with every further one ...
    longest_pause_s: float = 2.0  # ... up to this
    close_s: float = 5.0  # for closing TLS
