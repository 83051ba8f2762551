"""The library sees whole frames, however the bytes come (RFC 9113 section 4.1)."""

from collections.abc import Callable

import ngh2
from hypothesis import given
from hypothesis import strategies as st

from sdcp.http.frames import CLIENT_PREFACE, MAX_FRAME, WholeFrames
from sdcp.http.limits import ServerLimits


def frame(size: int, kind: int = 0) -> bytes:
    return size.to_bytes(3, "big") + bytes([kind, 0, 0, 0, 0, 1]) + bytes([kind]) * size


def ends(frames: list[bytes], skip: int) -> set[int]:
    at, found = skip, {0, skip}
    for each in frames:
        at += len(each)
        found.add(at)
    return found


@given(
    st.lists(st.integers(0, 300).map(frame), max_size=8),
    st.sampled_from([0, CLIENT_PREFACE]),
    st.lists(st.integers(0, 2000), max_size=12),
    st.integers(0, 200),
)
def test_nothing_is_lost_and_nothing_is_torn(frames: list[bytes], skip: int, cuts: list[int], torn: int) -> None:
    stream = b"P" * skip + b"".join(frames) + frame(200)[:torn]
    whole, given_so_far, passed = WholeFrames(skip), 0, 0
    for cut in [*sorted(min(cut, len(stream)) for cut in cuts), len(stream)]:
        out = whole.cut(stream[given_so_far:cut])
        assert out == stream[passed : passed + len(out)]
        given_so_far, passed = cut, passed + len(out)
        assert passed in ends(frames, skip)
        assert given_so_far - passed < 9 + 300 + (skip if passed == 0 else 0)
    assert passed == len(stream) - torn or (torn == 0 and passed == len(stream)) or not frames


def test_a_frame_longer_than_allowed_is_not_gathered() -> None:
    head = frame(MAX_FRAME + 1)[:9]
    assert WholeFrames(0).cut(head + b"x" * 5) == head + b"x" * 5


def test_a_frame_that_comes_octet_by_octet_is_kept_until_it_is_whole() -> None:
    whole, data = WholeFrames(0), frame(20)
    for octet in data[:-1]:
        assert whole.cut(bytes([octet])) == b""
    assert whole.cut(data[-1:]) == data


async def test_resets_amid_a_frame_leave_the_window_whole(serving: Callable, raw: Callable) -> None:
    """The fault of ngh2 0.3 that `WholeFrames` is for: without it the connection stands still after a few rounds."""
    from sdcp.http.exchange import Request, Response

    async def refuse(request: Request) -> Response:
        if request.path == "/":
            return Response(403)
        return Response(200, (), str(len(await request.body(1 << 20))).encode())

    limits = ServerLimits(stream_window=65_535, connection_window=65_535)
    async with serving(refuse, limits=limits) as (server, _, _), raw(server) as client:
        await client.until(ngh2.SettingsReceived)
        for _ in range(40):
            stream = client.request()
            client.h2.send_data(stream, b"x" * 16_000)
            data = client.h2.data_to_send()
            client.writer.write(data[:-5000])  # the frame is torn, and its stream refused before the rest comes
            await client.until(ngh2.StreamReset, stream)
            client.writer.write(data[-5000:])
            await client.settle()
        stream = client.request("PUT", "/whole")
        client.h2.send_data(stream, b"x" * 500_000, end_stream=True)
        assert await client.status(stream) == 200
        assert (await client.until(ngh2.DataReceived, stream)).data == b"500000"
