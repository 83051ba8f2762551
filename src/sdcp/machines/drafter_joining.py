"""Taking an assignment: what a drafter checks and gathers before it answers 204 (4.1, 6.1, D20).

Words: a drafter *joins* a session from the arrival of an assignment until prompt and committed output are at hand and
their digest is the one that the assignment names. Nothing is drafted before.

Not here: epochs, and assignments to a session already held (`sdcp.machines.drafter`).
"""

from __future__ import annotations

from dataclasses import dataclass

from sdcp.errors import BadContract, InvalidContent, ProblemError
from sdcp.machines.drafter_prefix import Prefix
from sdcp.machines.effects import FetchOutput, FetchTokens, Refuse, Reply
from sdcp.messages.round import Assignment

RULES = (1, 2)
OCTETS_PER_TOKEN = 9
"""The most that one token takes in CBOR, in any well-formed encoding (D4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModel:
    """What a drafter is: digests of its model and tokenizer, V of the target (D5), its context (None: unlimited).

    `longest_prompt` bounds a prompt that is fetched, in tokens (D11).
    """

    model: bytes
    tokenizer: bytes
    width: int
    context: int | None = None
    longest_prompt: int = 1 << 20


def fault_of(message: Assignment, model: DraftModel) -> ProblemError | None:
    """Return why this drafter cannot take the assignment, as far as the message alone tells (D20)."""
    contract = message.contract
    if contract.rule not in RULES:
        return BadContract(f"The contract's rule {contract.rule} is not registered; this drafter knows rules 1 and 2.")
    if contract.tokenizer != model.tokenizer:
        return InvalidContent(
            "The contract's tokenizer is not this drafter's; assign a drafter with the same tokenizer."
        )
    if contract.drafters is not None and model.model not in contract.drafters:
        return InvalidContent("The contract's drafters do not list this drafter's model; assign a permitted one.")
    if message.committed > contract.max_new:
        return InvalidContent(f"committed is {message.committed}, more than max_new = {contract.max_new}.")
    return None


class Joining:
    """What is known so far of the prefix that an assignment names, and the requests that wait for the answer.

    `message` is the assignment; `latest` the last one of the same epoch, of which only the profile matters (D21).
    """

    __slots__ = ("_model", "_output", "_prompt", "_waiting", "latest", "message")

    def __init__(self, message: Assignment, request: int, model: DraftModel) -> None:
        self.message = self.latest = message
        self._waiting = [request]
        self._model = model
        self._prompt = None if isinstance(message.prompt, str) else message.prompt
        self._output: tuple[int, ...] | None = None if message.committed else ()

    def join_again(self, message: Assignment, request: int) -> None:
        """The session was assigned once more meanwhile."""
        self.latest = message
        self._waiting.append(request)

    def forget(self, request: int) -> None:
        """Nobody waits for this answer any more."""
        self._waiting = [each for each in self._waiting if each != request]

    def accept(self) -> list[Reply]:
        """Answer all that wait: the assignment is taken."""
        return [Reply(request, None) for request in self._waiting]

    def refuse(self, error: ProblemError) -> list[Refuse]:
        """Answer all that wait: the assignment is not taken."""
        return [Refuse(request, error) for request in self._waiting]

    def wants(self) -> FetchTokens | FetchOutput | None:
        """Return what to fetch next, or None when everything is here.

        Without `committed_tokens` the committed output comes from the verifier (D9a).
        """
        message = self.message
        if self._prompt is None and isinstance(message.prompt, str):
            return FetchTokens(message.prompt, OCTETS_PER_TOKEN * (self._model.longest_prompt + 1))
        if self._output is not None:
            return None
        if message.committed_tokens is not None:
            return FetchTokens(message.committed_tokens, OCTETS_PER_TOKEN * (message.committed + 1))
        return FetchOutput(message.verifier, message.session, 0)

    def take_object(self, tokens: tuple[int, ...]) -> None:
        """The object that was wanted is here: the prompt first, then committed_tokens."""
        if self._prompt is None:
            self._prompt = tokens
        else:
            self._output = tokens

    def take_output(self, tokens: tuple[int, ...]) -> None:
        """The verifier's output is here; it may have grown since the assignment was made."""
        self._output = tokens[: self.message.committed]

    def prefix(self) -> Prefix:
        """Return the committed prefix, checked against the assignment. Raises InvalidContent (D20)."""
        message, prompt, output = self.message, self._prompt, self._output
        assert prompt is not None
        assert output is not None
        self._check_widths(prompt, output)
        prefix = Prefix(message.contract, prompt)
        if not prefix.extend_to(output, message.committed, message.digest):
            raise InvalidContent(
                f"Prompt and {len(output)} committed tokens do not have the digest of the assignment's "
                f"{message.committed} tokens; send the prefix that the verifier named."
            )
        return prefix

    def _check_widths(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> None:
        width, context = self._model.width, self._model.context
        if max(max(prompt, default=0), max(output, default=0)) >= width:
            raise InvalidContent(f"A token of the prefix is not below V = {width} (D5).")
        if context is not None and len(prompt) + self.message.contract.max_new > context:
            raise InvalidContent(
                f"Prompt and max_new are {len(prompt) + self.message.contract.max_new} tokens; "
                f"this drafter's model takes {context}: assign another."
            )
