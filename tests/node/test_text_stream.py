"""Text leaves a head whole: no broken characters, no stop string, nothing lost."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from meshnet_node.text_stream import TextStream


def shown(pieces: list[bytes], stops: list[str]) -> str:
    stream = TextStream(stops)
    parts = []
    for piece in pieces:
        parts.append(stream.push(piece))
        if stream.has_stopped:
            break
    return "".join(parts) + stream.finish()


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_text_is_the_same_however_its_bytes_are_split(text: str, cuts: list[int]) -> None:
    assert shown(split(text.encode(), cuts), []) == text


@given(
    st.text(alphabet="abé", max_size=40),
    st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 1000)),
)
def test_text_ends_before_the_stop_string_that_begins_first(text: str, stops: list[str], cuts: list[int]) -> None:
    begins = [at for stop in stops if (at := text.find(stop)) >= 0]
    whole = shown([text.encode()], stops)
    assert whole == (text[: min(begins)] if begins else text)
    assert all(stop not in shown(split(text.encode(), cuts), stops) for stop in stops)


def test_no_part_of_a_stop_string_is_shown_while_it_may_still_come() -> None:
    stream = TextStream(["STOP"])

    assert [stream.push(piece) for piece in (b"go S", b"T", b"OP on")] == ["go ", "", ""]
    assert stream.has_stopped
    assert stream.finish() == ""


def test_text_that_only_looked_like_a_stop_string_is_not_lost() -> None:
    stream = TextStream(["STOP"])

    assert [stream.push(piece) for piece in (b"ST", b"AR")] == ["", "STAR"]
    assert stream.push(b" ST") == " "
    assert stream.finish() == "ST"
    assert not stream.has_stopped


def test_a_character_waits_for_its_last_byte() -> None:
    stream = TextStream([])
    euro = "€".encode()

    assert [stream.push(euro[:1]), stream.push(euro[1:2]), stream.push(euro[2:])] == ["", "", "€"]


def test_empty_stop_strings_are_ignored() -> None:
    assert shown([b"text"], [""]) == "text"
