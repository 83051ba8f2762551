"""Opening a session at a verifier: everything that must hold before session-open is answered 200 (6.1, 6.9, D19, D20).

`open_session` is a generator that reads like the procedure: it yields effects, is sent their answers, and returns an
`Opened`. It raises the ProblemError with which the open is refused; nothing has been written anywhere by then.
Not here: repeated opens and who waits for the answer (`verifier`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

from sdcp.errors import BadContract, Conflict, InvalidContent, MalformedBody, Overloaded, StaleEpoch
from sdcp.machines.effects import FetchTokens, Prefill, ReadLog
from sdcp.machines.history import History
from sdcp.machines.inputs import LogRead, LogUnanswered, Prefilled, PrefillFailed, TokensFetched, TokensUnavailable
from sdcp.machines.reader import LogReader
from sdcp.machines.verifier_account import Account
from sdcp.messages.contract import Action, Contract
from sdcp.messages.record import CommitRecord
from sdcp.messages.session import Resume, SessionOpen, State
from sdcp.rules.acceptance import RULES
from sdcp.rules.digest import digest_of, extend_all, prefix_digest
from sdcp.rules.draws import LAST_ROUND

OCTETS_PER_TOKEN = 9
"""The longest CBOR encoding of an unsigned integer, and of an array's head."""

MAX_PROMPT = 1_048_576
"""Tokens of a prompt object when the model's context sets no bound (D11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What a verifier's machines know of its target model; `vocabulary` is V, `context` None is unlimited."""

    model: bytes
    tokenizer: bytes
    vocabulary: int
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """A session as it opens. `last` is the log's last valid record, None at round 0; `digest` is d[n].

    `account` sums up what the log tells of earlier epochs (D39).
    """

    message: SessionOpen
    contract_digest: bytes
    prompt_digest: bytes
    digest: bytes
    history: History
    reader: LogReader
    etag: str | None
    account: Account
    state: State

    @property
    def last(self) -> CommitRecord | None:
        """The commit record from which the session goes on."""
        return self.reader.last


Effect: TypeAlias = FetchTokens | ReadLog | Prefill
Answer: TypeAlias = TokensFetched | TokensUnavailable | LogRead | LogUnanswered | Prefilled | PrefillFailed


def open_session(message: SessionOpen, target: TargetFacts) -> Generator[Effect, Answer, Opened]:
    """Check and fetch all that the session stands on, cheapest and most final refusals first."""
    contract = message.contract
    check_contract(contract, target)
    if message.resume is None and message.epoch != 1:
        raise Conflict(f"A session opens with epoch 1; epoch {message.epoch} needs the member 'resume'.")
    prompt = yield from _prompt(message, target)
    check_prompt(prompt, contract, target)
    digest_of_contract = digest_of(contract)
    prompt_digest = prefix_digest(digest_of_contract, prompt)
    reader, etag, account = yield from _log(message)
    check_log(reader, message, prompt_digest)
    output = yield from _committed_tokens(message.resume)
    check_output(output, contract, prompt_digest, message.resume, target)
    opened = Opened(
        message,
        digest_of_contract,
        prompt_digest,
        message.resume.digest if message.resume else prompt_digest,
        History(prompt, output),
        reader,
        etag,
        account,
        _state(contract, output, reader.last),
    )
    if opened.state not in (State.FINISHED, State.FAILED):
        yield from _prefill(opened)
    return opened


def is_repeat(message: SessionOpen, first: SessionOpen, prompt_digest: bytes | None) -> bool:
    """Tell whether `message`, of the same epoch, opens the same session as `first` did (D19).

    `prompt_digest` is d[0] once it is known: from then on `first` need not hold the prompt's tokens any more.
    References that only help (prompt_kv, target_kv, committed_tokens) may differ.
    """
    if message.commit_log != first.commit_log or _place(message.resume) != _place(first.resume):
        return False
    if message.contract != first.contract:
        return False
    if isinstance(message.prompt, str) or prompt_digest is None:
        return message.prompt == first.prompt
    try:
        return prefix_digest(digest_of(first.contract), message.prompt) == prompt_digest
    except ValueError:  # a token that is not below 2^32
        return False


def _place(resume: Resume | None) -> tuple[int, int, bytes] | None:
    return (resume.round, resume.committed, resume.digest) if resume else None


def is_answer(given: object, wanted: Effect | None) -> TypeGuard[Answer]:
    """Tell whether an input answers the effect for which an opening waits: anything else changes nothing."""
    match wanted, given:
        case FetchTokens(ref=wanted_ref), (TokensFetched(ref=ref) | TokensUnavailable(ref=ref)):
            return ref == wanted_ref
        case (ReadLog(), (LogRead() | LogUnanswered())) | (Prefill(), (Prefilled() | PrefillFailed())):
            return True
    return False


# ---- fetching --------------------------------------------------------------------------------------------------------


def _prompt(message: SessionOpen, target: TargetFacts) -> Generator[Effect, Answer, tuple[int, ...]]:
    if not isinstance(message.prompt, str):
        return message.prompt
    return (yield from _tokens(message.prompt, MAX_PROMPT if target.context is None else target.context))


def _committed_tokens(resume: Resume | None) -> Generator[Effect, Answer, tuple[int, ...]]:
    if resume is None or resume.committed == 0:
        return ()
    return (yield from _tokens(resume.committed_tokens, resume.committed))


def _tokens(ref: str, count: int) -> Generator[Effect, Answer, tuple[int, ...]]:
    """Fetch an object of at most `count` tokens."""
    answer = yield FetchTokens(ref, OCTETS_PER_TOKEN * (count + 1))
    if isinstance(answer, TokensUnavailable):
        raise answer.error
    assert isinstance(answer, TokensFetched)
    return answer.tokens


def _log(message: SessionOpen) -> Generator[Effect, Answer, tuple[LogReader, str | None, Account]]:
    answer = yield ReadLog(message.commit_log, 0)
    if not isinstance(answer, LogRead):
        raise Overloaded("The commit log cannot be read now; open the session again later.")
    reader, account = LogReader(), Account()
    try:
        for entry in reader.entries(answer.data):
            if isinstance(entry.record, CommitRecord) and not entry.void:
                account.add(entry.record)
    except MalformedBody as fault:
        raise InvalidContent(f"The commit log is no sequence of records: {fault.detail}") from None
    return reader, answer.etag, account


def _prefill(opened: Opened) -> Generator[Effect, Answer, None]:
    """Start from the KV that another verifier may have published (6.3), or from the prompt's; without, compute it."""
    resume = opened.message.resume
    kv = (resume.target_kv if resume else None) or opened.message.prompt_kv
    answer = yield Prefill(opened.history, kv, empty_prompt=opened.history.prompt_length == 0)
    if isinstance(answer, PrefillFailed):
        raise answer.error


# ---- checks ----------------------------------------------------------------------------------------------------------


def check_contract(contract: Contract, target: TargetFacts) -> None:
    """Refuse a contract that this verifier cannot keep (6.1, D6). Raises BadContract."""
    if contract.rule not in RULES:
        raise BadContract(f"Contract member 'rule' is {contract.rule}; registered are {sorted(RULES)}.")
    if contract.target != target.model:
        raise BadContract(
            "Contract member 'target' is not the digest of this verifier's model; choose another verifier."
        )
    if contract.tokenizer != target.tokenizer:
        raise BadContract("Contract member 'tokenizer' is not the digest of this verifier's tokenizer.")
    if target.context is not None and contract.max_new > target.context:
        raise BadContract(f"Contract member 'max_new' is over the model's context of {target.context} tokens.")


def check_prompt(prompt: tuple[int, ...], contract: Contract, target: TargetFacts) -> None:
    """Refuse tokens not below V (D5: InvalidContent), and P + max_new over the context (D6: BadContract)."""
    check_vocabulary("prompt", prompt, target)
    if target.context is not None and len(prompt) + contract.max_new > target.context:
        raise BadContract(
            f"Contract member 'max_new' is {contract.max_new}: with a prompt of {len(prompt)} tokens that is over "
            f"the model's context of {target.context} tokens."
        )


def check_vocabulary(what: str, tokens: tuple[int, ...], target: TargetFacts) -> None:
    """Raise InvalidContent if any token is not below V."""
    if tokens and max(tokens) >= target.vocabulary:
        raise InvalidContent(f"The {what} has the token {max(tokens)}, which is not below V = {target.vocabulary}.")


def check_log(reader: LogReader, message: SessionOpen, prompt_digest: bytes) -> None:
    """Refuse when the log says something else than the open (D19). Raises StaleEpoch, Conflict or InvalidContent."""
    if reader.fence > message.epoch:
        raise StaleEpoch(f"The commit log is fenced at epoch {reader.fence}; epoch {message.epoch} is over.")
    if message.resume is None:
        if reader.last is not None:
            raise Conflict("The commit log has commit records; fence it and open with the member 'resume'.")
        return
    if reader.fence != message.epoch:
        raise Conflict(f"The commit log's last fence is {reader.fence}: append a fence of epoch {message.epoch} first.")
    if reader.last is not None and reader.last.epoch >= message.epoch:
        raise Conflict(f"The commit log has records of epoch {message.epoch} already; fence it at a higher one.")
    resume, last = message.resume, reader.last
    found = (last.round, last.committed, last.digest) if last else (0, 0, prompt_digest)
    if (resume.round, resume.committed, resume.digest) != found:
        raise Conflict(f"The commit log ends at round {found[0]} with {found[1]} tokens; resume from there.")
    if resume.round >= LAST_ROUND:
        raise InvalidContent(f"No round follows round {resume.round}: numbers of rounds have 32 bits (6.4).")


def check_output(
    output: tuple[int, ...], contract: Contract, prompt_digest: bytes, resume: Resume | None, target: TargetFacts
) -> None:
    """Refuse committed tokens that do not make the chain (Conflict), or could not be committed (InvalidContent)."""
    if resume is None:
        return
    check_vocabulary("object 'committed_tokens'", output, target)
    if len(output) != resume.committed or extend_all(prompt_digest, output) != resume.digest:
        raise Conflict("The object 'committed_tokens' does not lead from the prompt to the digest in 'resume'.")
    if len(output) > contract.max_new:
        raise InvalidContent(f"There are {len(output)} committed tokens, over max_new = {contract.max_new}.")
    if not set(contract.stop).isdisjoint(output[:-1]):
        raise InvalidContent("A stop token stands before the last committed token.")


def _state(contract: Contract, output: tuple[int, ...], last: CommitRecord | None) -> State:
    """Say in which state the session opens (D14, D19, D20)."""
    if len(output) == contract.max_new or (output and output[-1] in contract.stop):
        return State.FINISHED
    match last.action if last else None:
        case Action.FAIL:
            return State.FAILED
        case Action.SWITCH | Action.SELF_DECODE:
            return State.WAITING
    return State.DRAFTING
