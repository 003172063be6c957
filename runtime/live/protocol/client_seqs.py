"""The client's numbers of changes, where others than the client change its session, too."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import Applied, CanvasPicture, Problem, ServerMessage

MAX_SEQS = 1024


class ClientSeqs:
    """Numbers of a session's changes, where others than its client make some: they lie between the client's.

    others: those of the newest changes of others, ascending; num_older: how many there were before these.
    """

    def __init__(self, num_older: int = 0, others: list[int] | None = None) -> None:
        self.num_older, self.others = num_older, others or []

    def number(self, client_seq: int) -> int:
        """The session's number of the client's next change."""
        return client_seq + self.num_older + len(self.others)

    def client_seq(self, number: int) -> int:
        """The client's newest change up to one of the session; 0: none. Less for one that is older than `others`."""
        return max(0, number - self.num_older - bisect_right(self.others, number))

    def of_chunk(self, chunk: AudioChunk) -> AudioChunk:
        """A chunk with the client's seqs."""
        if not self.others:
            return chunk
        first_seq, full_seq = self.client_seq(chunk.first_seq), self.client_seq(chunk.full_seq)
        return replace(chunk, first_seq=first_seq, full_seq=full_seq)

    def of_message(self, message: ServerMessage) -> ServerMessage | None:
        """A message with the client's seqs; None where it is of changes before the client's first."""
        if not self.others:
            return message
        if isinstance(message, CanvasPicture):
            return message.model_copy(update={"seqs": [self.client_seq(seq) for seq in message.seqs]})
        if isinstance(message, Applied):
            seq = self.client_seq(message.seq)
            return message.model_copy(update={"seq": seq}) if seq else None
        if isinstance(message, Problem) and message.seq is not None:
            is_other = message.seq in self.others
            return message.model_copy(update={"seq": None if is_other else self.client_seq(message.seq)})
        return message

    def add(self, number: int) -> None:
        """Note a change of another client."""
        self.others.append(number)
        while len(self.others) > MAX_SEQS:
            self.others.pop(0)
            self.num_older += 1
