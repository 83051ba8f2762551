"""Rule 1 through the protocol: the output is that of the target decoding alone, whatever drafts (6.3, 6.4, 6.5)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sdcp.engines.bigram import BigramDrafter, BigramTarget
from sdcp.messages.contract import Action, ContractSampling
from sdcp.ports import Drafter
from sdcp.testing.engines import Proposing, bigram, contract_for, cycle_logits, plain_greedy, random_logits
from sdcp.testing.pair import Pair, Setting
from tests.simulation.conftest import Models, V

NAMES = ("same", "noisy", "half", "lookup", "mixed", "guesses", "contrary")
PROMPT = (5, 2, 5)
FINISH, FAIL = Action.FINISH, Action.FAIL


def decode(
    target: BigramTarget,
    drafters: Sequence[Drafter],
    prompt: tuple[int, ...] = PROMPT,
    setting: Setting | None = None,
    **members: object,
) -> Pair:
    """Run one session to its end; commits that are not plain greedy decoding break it on the way."""
    contract = contract_for(target, **members)
    plain = plain_greedy(target, prompt, contract.max_new, contract.stop)
    setting = setting or Setting()
    pair = Pair(contract, prompt, target, drafters, _with_plain(setting, plain)).run()
    if pair.front_end.finish is FINISH:
        assert pair.output == plain
    else:
        assert (pair.front_end.finish, pair.output) == (FAIL, plain[: len(pair.output)])
    return pair


def _with_plain(setting: Setting, plain: tuple[int, ...]) -> Setting:
    members = {name: getattr(setting, name) for name in Setting.__slots__}
    return Setting(**{**members, "plain": plain})


def rounds(pair: Pair) -> int:
    return len(pair.watch.records)


@pytest.mark.requirement("S6.4-greedy-output")
@pytest.mark.decision("D32")
def test_plain_decoding_is_the_walk_through_the_table(models: Models) -> None:
    """What all else here is compared with, without any engine."""
    logits, token, walked = models.target._logits, PROMPT[-1], []
    for _ in range(40):
        token = max(range(V), key=lambda each: (logits[token][each], -each))
        walked.append(token)
    assert plain_greedy(models.target, PROMPT, 40) == tuple(walked)


@pytest.mark.requirement("S6.4-greedy-output", "S1.3-output-unaffected", "S6.2-m-range")
@pytest.mark.decision("D32-exact")
@pytest.mark.parametrize("m", range(1, 17))
@pytest.mark.parametrize("name", NAMES)
def test_output_is_that_of_the_target_alone(models: Models, wild: Models, name: str, m: int) -> None:
    for family in (models, wild):
        pair = decode(family.target, [family.drafters[name]()], m_max=m, max_new=33)
        assert pair.front_end.finish is FINISH
        # At best M + 1 tokens a round, at worst one: speculation is at work, and only speculation differs.
        assert {"same": -(-33 // (m + 1)), "contrary": 33}.get(name, rounds(pair)) == rounds(pair)
        assert -(-33 // (m + 1)) <= rounds(pair) <= 33


@pytest.mark.requirement("S6.2-m-cap-source", "S6.5.1-restored-gradually", "S6.5.1-m-cap-range")
@pytest.mark.decision("D16")
@pytest.mark.parametrize("m_init", [0, 1, 2, 5, 16, 99])
def test_the_limit_begins_at_m_init_and_rises_by_one(models: Models, m_init: int) -> None:
    pair = decode(models.target, [models.drafters["same"]()], setting=Setting(m_init=m_init), m_max=16, max_new=200)
    accepted = [record.accepted for record in pair.watch.records.values()]
    first = min(max(m_init, 1), 16)
    expected = [min(first + step, 16) for step in range(len(accepted))]
    assert accepted[:-1] == expected[:-1]  # the last round has less room


@pytest.mark.requirement("S6.1-open-answer")
@pytest.mark.decision("D6-context")
@pytest.mark.parametrize("name", ["same", "half", "contrary"])
def test_prompts_of_every_length_up_to_the_context(folder: Path, name: str) -> None:
    context = 20
    path = folder / f"context-{name}"
    target = bigram(path, cycle_logits(V, 3) + 0.1 * random_logits(V, 4), context=context)
    luck = Random(1)
    for length in range(1, context + 1):
        prompt = tuple(luck.randrange(V) for _ in range(length))
        drafter = _of(name, path, target)
        pair = decode(target, [drafter], prompt, m_max=4, max_new=context - length)
        assert len(pair.output) == context - length


def _of(name: str, path: Path, target: BigramTarget) -> Drafter:
    if name == "same":
        return BigramDrafter(path)
    if name == "half":
        bigram(path.with_name("small"), cycle_logits(V, 3)[: V // 2, : V // 2])
        return BigramDrafter(path.with_name("small"), V)
    return Proposing(V, lambda prefix, length, count: ([(prefix[length - 1] + 1) % V] * count, None))


@pytest.mark.decision("D26-digest", "D26-start")
@pytest.mark.parametrize("name", ["same", "noisy", "guesses", "contrary"])
@pytest.mark.parametrize("m", [1, 3, 16])
def test_an_empty_prompt_begins_with_start(models: Models, name: str, m: int) -> None:
    pair = decode(models.target, [models.drafters[name]()], (), m_max=m)
    assert pair.output[0] == 3
    assert pair.front_end.finish is FINISH


@pytest.mark.decision("D26-start")
def test_an_empty_prompt_is_refused_where_the_model_has_no_start(folder: Path) -> None:
    target = bigram(folder / "no-start", random_logits(V, 1))
    pair = Pair(contract_for(target), (), target, [BigramDrafter(folder / "no-start")]).run()
    assert pair.front_end.failure is not None
    assert pair.front_end.failure.status == 422
    assert not pair.watch.records


@pytest.mark.requirement("S6.3-truncation", "S6.5.2-finish", "S6.7-final")
@pytest.mark.decision("D14")
@pytest.mark.parametrize("m", [1, 2, 4, 7])
@pytest.mark.parametrize("name", ["same", "half", "contrary", "lookup"])
def test_a_stop_token_ends_the_output_at_every_position_of_a_block(models: Models, name: str, m: int) -> None:
    plain = plain_greedy(models.target, PROMPT, V)
    for position in range(2 * (m + 1)):
        pair = decode(models.target, [models.drafters[name]()], m_max=m, max_new=40, stop=(plain[position],))
        assert pair.output == plain[: position + 1]
        assert pair.front_end.finish is FINISH


@pytest.mark.decision("D5-stop")
def test_a_stop_token_that_is_not_below_v_never_matches(models: Models) -> None:
    assert len(decode(models.target, [models.drafters["same"]()], stop=(V, 2**32, 2**64 - 1)).output) == 32


@pytest.mark.requirement("S6.3-truncation")
@pytest.mark.decision("D14")
@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_output_ends_at_max_new(models: Models, name: str, m: int) -> None:
    for max_new in (0, 1, 2, m, m + 1, m + 2):
        pair = decode(models.target, [models.drafters[name]()], m_max=m, max_new=max_new)
        assert len(pair.output) == max_new
        assert pair.front_end.finish is FINISH
        assert max_new or not pair.watch.records  # with none to generate, no round is needed


# ---- escalation (6.5.2) ----------------------------------------------------------------------------------------------


def ladder(models: Models, drafters: Sequence[str], fallback: Sequence[Action], load: int = 0, **members: int) -> Pair:
    """A session with R = 2 under a ladder; the load is the verifiers' from beginning to end."""
    engines = [models.drafters[name]() for name in drafters]
    setting = Setting(load=lambda: load)
    return decode(models.target, engines, setting=setting, low_rounds=2, fallback=tuple(fallback), **members)


def actions(pair: Pair) -> list[Action | None]:
    return [record.action for record in pair.watch.records.values()]


@pytest.mark.requirement("S6.5.2-reduce", "S6.5.2-ladder-exhausted", "S6.5.2-fail", "S6.7-final")
def test_a_ladder_to_its_end_fails_the_session(models: Models) -> None:
    pair = ladder(models, ["contrary"], [Action.REDUCE, Action.REDUCE])
    assert actions(pair) == [0, 1, 0, 1, 0, 5]
    assert [record.m_cap for record in pair.watch.records.values()] == [16, 8, 8, 4, 4, 4]
    assert (pair.front_end.finish, len(pair.output)) == (FAIL, 6)


@pytest.mark.requirement("S6.5.2-switch-event", "S6.5.2-switch-stops-drafter", "S6.5.2-j-persists")
def test_switch_brings_another_drafter(models: Models) -> None:
    pair = ladder(models, ["contrary", "same"], [Action.SWITCH])
    assert pair.front_end.finish is FINISH
    assert actions(pair)[:2] == [0, 2]
    assert [record.accepted for record in pair.watch.records.values()][:3] == [0, 0, 16]


@pytest.mark.requirement("S6.5.2-switch-event", "S6.5.2-fail")
def test_a_switch_among_bad_drafters_ends_in_failure(models: Models) -> None:
    pair = ladder(models, ["contrary", "contrary"], [Action.SWITCH, Action.SWITCH])
    assert (actions(pair), pair.front_end.finish) == ([0, 2, 0, 2, 0, 5], FAIL)


@pytest.mark.requirement("S6.5.2-self-decode", "S6.5.2-self-decode-rounds", "S6.5.2-self-decode-one-by-one")
@pytest.mark.decision("D29")
def test_a_verifier_with_little_load_decodes_to_the_end_by_itself(models: Models) -> None:
    pair = ladder(models, ["contrary"], [Action.SELF_DECODE], load=50, self_load=50)
    records = list(pair.watch.records.values())
    assert pair.front_end.finish is FINISH
    assert [record.accepted for record in records] == [0, 0] + [None] * 30
    assert all(len(record.tokens) == 1 for record in records)


@pytest.mark.requirement("S6.5.2-self-decode-permitted", "S6.5.2-load-decides", "S6.5.2-ladder-skips")
def test_under_load_the_same_ladder_leads_to_the_next_entry(models: Models) -> None:
    rungs = [Action.SELF_DECODE, Action.SWITCH]
    pair = ladder(models, ["contrary", "same"], rungs, load=51, self_load=50)
    assert actions(pair)[:2] == [0, 2]
    assert all(record.accepted is not None for record in pair.watch.records.values())


@pytest.mark.requirement("S6.5.2-self-decode-ends", "S6.5.2-self-decode-event", "S6.5.2-j-persists")
def test_after_self_max_tokens_a_drafter_comes_again(models: Models) -> None:
    pair = ladder(models, ["contrary"], [Action.SELF_DECODE, Action.SELF_DECODE], self_load=0, self_max=3)
    kinds = [record.accepted for record in pair.watch.records.values()]
    assert kinds == [0, 0, None, None, None, 0, 0, None, None, None, 0, 0]
    assert pair.front_end.finish is FAIL


@pytest.mark.requirement("S6.5.2-self-decode-ends", "S6.5.2-self-decode-permitted")
def test_rising_load_ends_a_self_decoding_period(models: Models) -> None:
    loads = chain([0] * 12, repeat(90))
    setting = Setting(load=lambda: next(loads))
    fallback = (Action.SELF_DECODE, Action.SWITCH)
    engines = [models.drafters["contrary"](), models.drafters["same"]()]
    pair = decode(models.target, engines, setting=setting, low_rounds=2, fallback=fallback, self_load=50)
    decoded = [record.accepted is None for record in pair.watch.records.values()]
    assert pair.front_end.finish is FINISH
    assert 0 < sum(decoded) < 10
    assert not any(decoded[2 + sum(decoded) :]), "the period was not one stretch"


@pytest.mark.requirement("S6.4-greedy-output", "S6.5.2-ladder-entry", "S6.5.2-low-round")
@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=3),
    fallback=st.lists(
        st.sampled_from([Action.REDUCE, Action.SWITCH, Action.SELF_DECODE, FAIL]), min_size=1, max_size=4
    ),
    numbers=st.fixed_dictionaries(
        {"m_max": st.integers(1, 16), "low_rounds": st.integers(1, 3), "max_new": st.integers(0, 40)},
        optional={"low_ratio": st.integers(0, 100), "self_load": st.integers(0, 100), "self_max": st.integers(0, 4)},
    ),
    prompt=st.lists(st.integers(0, V - 1), max_size=6).map(tuple),
    stop=st.lists(st.integers(0, V + 4), max_size=2).map(tuple),
    m_init=st.integers(0, 20),
    loads=st.randoms(use_true_random=False),
)
def test_every_contract_gives_a_prefix_of_plain_decoding_and_all_of_it_unless_it_fails(
    models: Models,
    names: list[str],
    fallback: list[Action],
    numbers: dict[str, int],
    prompt: tuple[int, ...],
    stop: tuple[int, ...],
    m_init: int,
    loads: Random,
) -> None:
    drafters = [models.drafters[name]() for name in names]
    setting = Setting(m_init=m_init, load=lambda: loads.randrange(101), encoded=True)
    decode(models.target, drafters, prompt, setting, fallback=tuple(fallback), stop=stop, **numbers)


@pytest.mark.requirement("S6.4-greedy-output", "S1.3-output-unaffected")
@given(st.data())
def test_no_proposal_whatever_changes_the_output(models: Models, data: st.DataObject) -> None:
    def choose(prefix: Sequence[int], length: int, count: int) -> tuple[Sequence[int], None]:
        right = plain_greedy(models.target, prefix[:length], count)
        kept = data.draw(st.integers(0, count))
        rest = data.draw(st.lists(st.integers(0, V - 1), min_size=count - kept, max_size=count - kept))
        return [*right[:kept], *rest], None

    decode(models.target, [Proposing(V, choose)], m_max=data.draw(st.integers(1, 16)), max_new=24)


@pytest.mark.requirement("S5.2-q-rows-format", "S4.1-temperature-zero", "S6.3-leases-released")
@pytest.mark.decision("D22")
@pytest.mark.parametrize("name", ["same", "noisy", "half", "lookup", "guesses"])
def test_rule_2_at_temperature_zero_is_greedy_decoding_too(models: Models, name: str) -> None:
    pair = decode(
        models.target, [models.drafters[name]()], rule=2, m_max=5, sampling=ContractSampling(temperature_milli=0)
    )
    assert pair.front_end.finish is FINISH
    assert not pair.settle().store.objects, "rows outlive their verdict"
