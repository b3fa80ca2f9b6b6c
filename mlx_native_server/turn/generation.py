"""The jobs of one answer, one after another, as one source of replies.

A job can be left for another that goes on from its prompt and its tokens: to end a thought, to ask again. The new prompt
begins with all that the old job computed, so nothing of it is computed twice. Tokens are counted here, over all jobs.
"""
from __future__ import annotations

import logging

from ..prompt.conversion import offered_tools
from ..protocol import ApiError, Failed, Finished, Job, Piece, Reply, Started, Submit, Ticket
from .turn import Turn

logger = logging.getLogger(__name__)

WAIT_S = 0.2
"""How long to wait for the engine before the caller is given a chance to look at its client."""


class Generation:
    """Queues the turn's first job; raises what `submit` raises (529).

    `output_tokens`: what the model generated, in every job. The window holds: what is written for the model between two
    jobs counts against `max_tokens` too.
    """

    def __init__(self, turn: Turn, submit: Submit):
        self.output_tokens = 0
        self._turn, self._submit = turn, submit
        self._tokens = list(turn.encoded.tokens)
        self._written = 0  # tokens that were written for the model since
        self._jobs = 0
        self._ticket = self._queue(turn.encoded.tokens, turn.max_tokens)

    def get(self) -> Reply | None:
        """The next reply, None where nothing came for `WAIT_S` seconds. Only the first job's start is told.

        Raises the `ApiError` of a job that failed.
        """
        reply = self._ticket.get(WAIT_S)
        match reply:
            case Started() if self._jobs > 1:
                return None
            case Piece(_, tokens, ids):
                self.output_tokens += tokens
                self._tokens.extend(ids)
            case Finished(_, tokens):
                self.output_tokens += tokens
            case Failed(error):
                raise error
        return reply

    def go_on(self, ids: list[int]) -> bool:
        """Leave the job; a new one goes on after what was generated and `ids`.

        False, and nothing has changed, where `max_tokens` leaves no room or the queue is full.
        """
        left = self._turn.max_tokens - self.output_tokens - self._written - len(ids)
        if left < 1:
            return False
        try:
            ticket = self._queue([*self._tokens, *ids], left)
        except ApiError as error:
            logger.warning("%s cannot be gone on with: %s", self._turn.id, error)
            return False
        self.cancel()
        self._ticket = ticket
        self._tokens.extend(ids)
        self._written += len(ids)
        return True

    def cancel(self) -> None:
        """End the running job."""
        self._ticket.cancel()

    def _queue(self, tokens: list[int], max_tokens: int) -> Ticket:
        turn, number = self._turn, self._jobs + 1
        name = turn.id if number == 1 else f"{turn.id}.{number}"
        offers = tuple(tool.name for tool in offered_tools(turn.request))
        ticket = self._submit(Job(name, tokens, max_tokens, turn.sampling, turn.request.client, turn.encoded.checkpoints, offers))
        self._jobs = number
        return ticket
