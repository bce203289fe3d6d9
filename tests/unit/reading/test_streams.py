from hypothesis import given
from hypothesis import strategies as st

from s3mount.ranges import GIB, KIB, MIB, ByteRange
from s3mount.reading.streams import MAX_GAP_BYTES, MAX_READ_BYTES, Reach, Run, Stride

REACH = Reach(object_size=GIB, window_bytes=64 * MIB, range_bytes=8 * MIB, growth=4.0)

SPANS = st.builds(
    lambda start, size: ByteRange(start * 4 * KIB, start * 4 * KIB + size * 4 * KIB),
    st.integers(0, 64 * 256),
    st.integers(1, MAX_READ_BYTES // (4 * KIB)),
)


@given(
    first=SPANS,
    spans=st.lists(SPANS, max_size=30),
    probe=SPANS,
    gap=st.integers(0, MAX_GAP_BYTES),
    is_run=st.booleans(),
)
def test_the_quick_test_turns_no_read_away_that_belongs(first, spans, probe, gap, is_run):
    stream = Run(first, 0) if is_run else Stride(first, MIB, 0)
    for span in spans:
        if stream.distance(span, gap) is not None:
            stream.note(span)
            stream.ahead(REACH)

    if stream.distance(probe, gap) is not None:
        assert stream.low < probe.start < stream.high


def test_a_run_asks_for_nothing_before_it_has_gone_on():
    assert Run(ByteRange(0, MIB), 0).ahead(REACH) == []


def test_a_stride_that_would_leave_the_object_ends_there():
    stride = Stride(ByteRange(0, MIB), -4 * MIB, 0)

    assert stride.ahead(REACH) == []
