"""The client's numbers of changes among those of others."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.base.errors import RequestError
from runtime.live.protocol.client_seqs import MAX_SEQS, ClientSeqs
from runtime.live.protocol.frames import AudioChunk
from runtime.live.protocol.server_messages import Applied, CanvasPicture, Closed, problem_of


@settings(max_examples=50)
@given(st.lists(st.integers(min_value=0, max_value=5), max_size=40))
def test_numbers_grow_and_give_the_clients_newest_change_back(jumps: list[int]) -> None:
    """0: another client changes something; n: the client's next seq is n larger."""
    seqs, accepted, client_seq, expected = ClientSeqs(), 0, 0, dict[int, int]()
    for jump in jumps:
        client_seq += jump
        number = seqs.number(client_seq) if jump else accepted + 1
        if not jump:
            seqs.add(number)
        assert number > accepted
        accepted = number
        expected[number] = client_seq
    assert {number: seqs.client_seq(number) for number in expected} == expected


def test_old_changes_of_others_are_counted_only() -> None:
    seqs = ClientSeqs()
    for number in range(1, 3 * MAX_SEQS + 1):
        seqs.add(number)
    assert len(seqs.others) == MAX_SEQS
    newest = seqs.number(1)
    assert newest == 3 * MAX_SEQS + 1
    assert [seqs.client_seq(number) for number in (newest, newest - 1, 5, 0)] == [1, 0, 0, 0]
    assert ClientSeqs(seqs.num_older, list(seqs.others)).number(1) == newest


def test_messages_and_audio_have_the_clients_numbers() -> None:
    seqs = ClientSeqs()
    picture = CanvasPicture(start_s=0.0, seconds=1.0, width=3, height=1, data="", seqs=[0, 1, 4])
    chunk = AudioChunk(1, 0, np.zeros((1, 2), np.float32), first_seq=4, full_seq=2)
    assert seqs.of_message(picture) is picture
    assert seqs.of_chunk(chunk) is chunk
    seqs.add(1)
    seqs.add(3)
    assert seqs.of_message(picture) == picture.model_copy(update={"seqs": [0, 0, 2]})
    assert (seqs.of_chunk(chunk).first_seq, seqs.of_chunk(chunk).full_seq) == (2, 1)
    assert seqs.of_message(Applied(seq=4)) == Applied(seq=2)
    assert seqs.of_message(Applied(seq=1)) is None
    problems = [seqs.of_message(problem_of(RequestError("no"), seq)) for seq in (None, 3, 4)]
    assert problems == [problem_of(RequestError("no"), seq) for seq in (None, None, 2)]
    closed = Closed(reason="closed", resumable=False)
    assert seqs.of_message(closed) is closed
