"""A router's process: who may report a status (D7, D9, D10), who may send events (D17), and requests (D33)."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from sdcp.http.client import Answer
from sdcp.wire import cbor
from tests.shells.refusals.expected import check_refused
from tests.shells.refusals.processes import BODY_BYTES, V
from tests.shells.refusals.requests import report_verifier, request_for
from tests.shells.refusals.session import SWITCH, path_id
from tests.shells.refusals.town import DRAFTER, OTHER, TOKENIZER, Town, changed

pytestmark = pytest.mark.asyncio(loop_scope="session")

# -- status ------------------------------------------------------------------------------------------------------------


def status(**changes: Any) -> dict[str, Any]:
    """The status of the drafter that the test plays, as good as over when it comes."""
    right = {"instance": DRAFTER, "role": 1, "load": 0, "queue": 0, "ttl_ms": 1}
    return changed({**right, "base": DRAFTER, "model": bytes(32), "tokenizer": TOKENIZER}, changes)


async def report(town: Town, who: str, at: str = "https%3A%2F%2Fdrafter.test%2Fd", **changes: Any) -> Answer:
    """Report to the path of the instance `at`."""
    url = f"{town.bases['router-process']}/instances/{at}/status"
    return await town.ask(who, "PUT", url, status(**changes))


@pytest.mark.requirement("S5.1-put-status")
@pytest.mark.decision("D3", "D9", "D10-drafter", "D10-verifier")
@pytest.mark.parametrize(
    ("who", "changes"),
    [
        ("other", {}),
        ("host", {}),
        ("nobody", {}),
        ("router", {}),
        ("front-end", {}),
        ("impostor", {}),
        ("verifier", {}),
        ("verifier", {"role": 2}),
        ("drafter", {"role": 2}),
        ("drafter", {"base": OTHER}),
        ("drafter", {"base": "https://drafter.test/"}),
        ("drafter", {"base": "drafter"}),
    ],
    ids=str,
)
async def test_a_status_comes_from_its_own_instance(town: Town, who: str, changes: dict[str, Any]) -> None:
    check_refused(await report(town, who, **changes), 403)
    answer = await report(town, "drafter")
    assert (answer.status, answer.body) == (204, b"")


@pytest.mark.decision("D3", "D7-path")
async def test_a_status_of_another_instance_than_its_path_is_422(town: Town) -> None:
    check_refused(await report(town, "drafter", "another"), 422, "path")
    check_refused(await report(town, "drafter", "https%3A%2F%2Fother.test%2Fd"), 422, "path")
    assert (await report(town, "drafter", "another", instance="another")).status == 204


@pytest.mark.decision("D9", "D10")
async def test_a_name_that_is_taken_stays_with_its_owner(town: Town) -> None:
    name = f"i{secrets.token_hex(8)}"
    assert (await report(town, "drafter", name, instance=name, ttl_ms=600_000)).status == 204
    check_refused(await report(town, "other", name, instance=name, base=OTHER), 403)
    assert (await report(town, "drafter", name, instance=name)).status == 204


# -- a session ---------------------------------------------------------------------------------------------------------


class Requested:
    """A request that the router has opened at the verifier."""

    def __init__(self, town: Town, request: dict[str, Any], location: dict[str, Any]) -> None:
        self.town, self.request, self.location = town, request, location
        self.url = f"{town.bases['router-process']}/requests/{path_id(request['request'])}"

    def event(self, **changes: Any) -> dict[str, Any]:
        """The verifier wants a drafter for it."""
        right = {"session": self.location["session"], "epoch": 1, "kind": SWITCH, "committed": 0, "digest": bytes(32)}
        return changed(right, changes)

    async def send(self, who: str = "verifier", **changes: Any) -> Answer:
        url = f"{self.town.bases['router-process']}/events"
        return await self.town.ask(who, "POST", url, self.event(**changes))

    async def locate(self, who: str = "front-end", query: str = "") -> Answer:
        return await self.town.ask(who, "GET", f"{self.url}{query}", None, ("prefer", "wait=0"))

    async def change_profile(self, who: str = "front-end", **members: Any) -> Answer:
        return await self.town.ask(who, "POST", f"{self.url}/policy", {"sampling": {"top_k": 2}, **members})


async def submit(town: Town, request: dict[str, Any], who: str = "front-end") -> Answer:
    return await town.ask(who, "POST", f"{town.bases['router-process']}/requests", request)


@pytest_asyncio.fixture(loop_scope="session")
async def requested(town: Town) -> AsyncIterator[Requested]:
    await report_verifier(town)
    request = request_for(town)
    answer = await submit(town, request)
    assert answer.status == 200, answer
    requested = Requested(town, request, cbor.decode(answer.body))
    yield requested
    assert (await town.ask("front-end", "DELETE", requested.url)).status == 204


# -- events ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("S5.1-post-events", "S6.5.2-switch-event")
@pytest.mark.decision("D3", "D10-verifier", "D17-router")
async def test_an_event_comes_from_the_sessions_verifier(town: Town, requested: Requested) -> None:
    location = (await requested.locate()).body
    for kind in (SWITCH, 4, 5, 77):
        for who in ("impostor", "drafter", "router", "front-end", "nobody"):
            check_refused(await requested.send(who, kind=kind), 403)
    check_refused(await requested.send(epoch=2), "sdcp-stale-epoch", "epoch 1")
    check_refused(await requested.send(session=bytes(16)), 404, "no such session")
    assert (await requested.locate()).body == location
    for _ in range(2):
        assert (await requested.send()).status == 204


@pytest.mark.decision("D17-router")
async def test_an_event_of_a_lower_epoch_is_204_without_effect(town: Town, requested: Requested) -> None:
    location = (await requested.locate()).body
    for kind in (0, SWITCH, 3, 4, 5):
        for who in ("verifier", "impostor"):
            answer = await requested.send(who, epoch=0, kind=kind)
            assert (answer.status, answer.body) == (204, b"")
    assert (await requested.locate()).body == location
    check_refused(await requested.send("impostor", kind=4), 403)


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.decision("D33-owner")
async def test_a_request_belongs_to_the_certificate_that_made_it(town: Town, requested: Requested) -> None:
    another = "another-front-end"
    check_refused(await requested.locate(another), 404, "no such request")
    check_refused(await requested.change_profile(another), 404, "no such request")
    check_refused(await town.ask(another, "DELETE", requested.url), 404, "no such request")
    check_refused(await submit(town, requested.request, another), 409)
    check_refused(await submit(town, {**requested.request, "max_new": 5}), 409)
    check_refused(await submit(town, {**requested.request, "prompt": [3, 5]}), 409)
    assert cbor.decode((await submit(town, requested.request)).body) == requested.location
    assert cbor.decode((await requested.locate()).body) == requested.location


@pytest.mark.decision("D33-refused")
async def test_what_the_verifier_refuses_with_422_reaches_the_front_end(town: Town, requested: Requested) -> None:
    check_refused(await submit(town, request_for(town, prompt=[3, V])), 422, "not below V")
    check_refused(await submit(town, request_for(town, prompt=[])), 422)
    check_refused(await submit(town, request_for(town, prompt=[2**32])), 422)
    check_refused(await submit(town, request_for(town, rule=3)), "sdcp-bad-contract", "'rule'")
    check_refused(await submit(town, request_for(town, max_new=2**40)), "sdcp-bad-contract", "'max_new'")
    assert cbor.decode((await requested.locate()).body) == requested.location


@pytest.mark.requirement("S6.6-from-round")
@pytest.mark.decision("D3", "D21", "D33-policy")
async def test_policies_of_a_request(town: Town, requested: Requested) -> None:
    check_refused(await requested.change_profile(from_round=0), 409, "from_round")
    check_refused(await requested.change_profile(sampling=1), 400, "(?i)sampling")
    check_refused(await requested.change_profile(padding=bytes(BODY_BYTES)), 413, str(BODY_BYTES))
    assert cbor.decode((await requested.change_profile()).body)["from_round"] == 1


@pytest.mark.decision("D3", "D33")
@pytest.mark.parametrize("epoch", ["x", "-1", "", "1.0", "%D9%A1", str(2**64), "1&epoch=2"])
async def test_an_epoch_that_is_none_is_400(town: Town, requested: Requested, epoch: str) -> None:
    check_refused(await requested.locate(query=f"?epoch={epoch}"), 400, "epoch")


@pytest.mark.decision("D33-delete", "D34")
async def test_a_request_that_was_withdrawn(town: Town, requested: Requested) -> None:
    assert (await town.ask("front-end", "DELETE", requested.url)).status == 204
    check_refused(await requested.change_profile(), "sdcp-session-closed")
