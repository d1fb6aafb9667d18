//! Outputs that match and outputs that do not, case by case.

use crate::frames::{Tcp, arp, icmp, udp};
use etherparse::TcpOptionElement;
use plover_matching::{Difference, Matcher};
use plover_types::{Frame, OutputNo};

/// A matcher whose slot has begun, with a counter for our frames.
pub(crate) struct Sides {
    pub matcher: Matcher,
    next: u64,
}

impl Sides {
    pub fn new() -> Self {
        let mut matcher = Matcher::new(1 << 20);
        matcher.begin(false);
        Self { matcher, next: 0 }
    }

    pub fn ours(&mut self, frame: &Frame) -> u64 {
        let no = self.next;
        self.next += 1;
        self.matcher.ours(OutputNo(no), frame);
        no
    }

    pub fn theirs(&mut self, frame: &Frame) {
        self.matcher.theirs(frame);
    }

    /// The numbers of the outputs that were covered since the last call.
    pub fn covered(&mut self) -> Vec<u64> {
        let covered = self.matcher.take_covered();
        covered.into_iter().map(|no| no.0).collect()
    }
}

#[test]
fn segmentation_does_not_matter() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(1000).data(b"HTTP/1.1 ").frame());
    sides.ours(&Tcp::at(1009).data(b"200 OK").frame());
    assert_eq!(sides.covered(), [], "the other side has sent nothing");
    sides.theirs(&Tcp::at(1000).data(b"HTTP/1.1 200").frame());
    assert_eq!(sides.covered(), [0], "the second frame is sent half");
    sides.theirs(&Tcp::at(1012).data(b" OK").frame());
    assert_eq!(sides.covered(), [1]);
    assert_eq!(sides.matcher.done(), 2);
    assert_eq!(sides.matcher.difference(), None);
}

/// The place of what comes after a lost message is not known, so nothing is covered until the next sync.
#[test]
fn nothing_is_covered_after_a_lost_message() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(7).data(b"one ").frame());
    sides.theirs(&Tcp::at(7).data(b"one ").frame());
    assert_eq!(sides.covered(), [0]);
    sides.matcher.lost();
    sides.ours(&Tcp::at(11).data(b"two ").frame());
    sides.theirs(&Tcp::at(11).data(b"two ").frame());
    assert_eq!(sides.covered(), []);
    assert_eq!(sides.matcher.difference(), Some(Difference::Lost));
    sides.matcher.begin(false);
    sides.ours(&Tcp::at(15).data(b"three").frame());
    sides.theirs(&Tcp::at(15).data(b"three").frame());
    assert_eq!(sides.covered(), [2]);
}

/// After a frame that a full guard has dropped, no other is released on a match. The next sync begins the
/// connection anew.
#[test]
fn nothing_is_covered_behind_a_dropped_output() {
    let mut sides = Sides::new();
    sides.theirs(&Tcp::at(7).data(b"one two three").frame());
    sides.ours(&Tcp::at(7).data(b"one ").frame());
    sides.matcher.dropped();
    sides.ours(&Tcp::at(11).data(b"two ").frame());
    assert_eq!(sides.covered(), [0], "before it");
    assert_eq!(sides.matcher.difference(), Some(Difference::Dropped));
    sides.matcher.begin(true);
    sides.ours(&Tcp::at(11).data(b"two ").frame());
    sides.theirs(&Tcp::at(11).data(b"two ").frame());
    let known = sides.covered();
    let mut fresh = Sides::new();
    fresh.ours(&Tcp::at(11).data(b"two ").frame());
    fresh.theirs(&Tcp::at(11).data(b"two ").frame());
    assert_eq!(
        known.len(),
        fresh.covered().len(),
        "as one never seen before"
    );
}

#[test]
fn the_other_side_may_be_ahead() {
    let mut sides = Sides::new();
    sides.theirs(&Tcp::at(7).data(b"+OK\r\n+OK\r\n").frame());
    assert_eq!(sides.matcher.done(), 0, "clients have nothing of it yet");
    sides.ours(&Tcp::at(7).data(b"+OK\r\n").frame());
    sides.ours(&Tcp::at(12).data(b"+OK\r\n").frame());
    assert_eq!(sides.covered(), [0, 1]);
    assert_eq!(sides.matcher.done(), 1);
}

#[test]
fn timestamps_windows_and_ip_numbers_do_not_matter() {
    let mut sides = Sides::new();
    let tcp = Tcp::at(50).data(b"x");
    sides.ours(&tcp.clone().stamp(17, 4).window(501).frame());
    sides.theirs(&tcp.stamp(23, 9).window(64).frame());
    assert_eq!(sides.covered(), [0]);
}

#[test]
fn different_bytes_are_a_difference_and_nothing_after_them_matches() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(0).data(b":41\r\n").frame());
    sides.ours(&Tcp::at(5).data(b"same").frame());
    sides.theirs(&Tcp::at(0).data(b":42\r\n").frame());
    sides.theirs(&Tcp::at(5).data(b"same").frame());
    assert_eq!(sides.covered(), []);
    assert_eq!(sides.matcher.difference(), Some(Difference::Content));
    assert_eq!(sides.matcher.done(), 0);
    let words = sides.matcher.describe_difference();
    assert!(words.contains("10.0.0.2:80 to 10.0.0.9:4000"), "{words}");
}

#[test]
fn other_connections_go_on() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(0).data(b"a").frame());
    sides.theirs(&Tcp::at(0).data(b"b").frame());
    let other = Tcp::at(9).port(4001).data(b"c").frame();
    sides.ours(&other);
    sides.theirs(&other);
    assert_eq!(sides.covered(), [1]);
}

/// The secondary keeps what is not done, and has room for so much only.
#[test]
fn outputs_of_the_other_side_alone_do_not_hold_up_the_rest() {
    for loose in [arp(1), udp(53, b"?"), Tcp::at(7).port(4001).rst().frame()] {
        let mut sides = Sides::new();
        sides.theirs(&loose);
        let both = |sides: &mut Sides, seq: u32| {
            let frame = Tcp::at(seq * 1000).data(&[0; 1000]).frame();
            sides.ours(&frame);
            sides.theirs(&frame);
        };
        (0..10).for_each(|seq| both(&mut sides, seq));
        assert_eq!(sides.matcher.done(), 0, "ours may yet send it");
        (10..100).for_each(|seq| both(&mut sides, seq));
        assert_eq!(sides.matcher.done(), 101);
        assert_eq!(sides.covered().len(), 100);
        assert_eq!(sides.matcher.difference(), None);
    }
}

/// An output that counts as lost is kept all the same, because this side may still send it.
#[test]
fn outputs_of_the_other_side_alone_are_bounded() {
    let mut sides = Sides::new();
    let most = (1 << 20) / 1000 + 2;
    (0..most).for_each(|_| sides.theirs(&udp(53, &[0; 1000])));
    assert_eq!(sides.matcher.difference(), Some(Difference::TooMuch));
    assert!(sides.matcher.done() > 0, "some of it was counted as lost");
}

/// The client forgets what is acknowledged: the secondary must have it.
#[test]
fn an_acknowledgement_waits_for_the_other_sides() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(5).ack(900).data(b"ok").frame());
    sides.theirs(&Tcp::at(5).ack(899).data(b"ok").frame());
    assert_eq!(sides.covered(), [], "one byte less was acknowledged there");
    sides.theirs(&Tcp::at(7).ack(900).frame());
    assert_eq!(sides.covered(), [0]);
}

#[test]
fn a_bare_acknowledgement_waits_for_the_other_sides() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(5).ack(u32::MAX).frame());
    assert_eq!(sides.covered(), []);
    sides.theirs(&Tcp::at(5).ack(3).frame());
    assert_eq!(sides.covered(), [0], "numbers go round in a circle");
}

#[test]
fn streams_go_round_in_a_circle() {
    let mut sides = Sides::new();
    let start = u32::MAX - 2;
    sides.ours(&Tcp::at(start).data(b"abcdef").fin().frame());
    sides.theirs(&Tcp::at(start).data(b"abcd").frame());
    sides.theirs(&Tcp::at(1).data(b"ef").fin().frame());
    assert_eq!(sides.covered(), [0]);
    assert_eq!(sides.matcher.done(), 2);
}

/// The secondary says its SYN with our number, once it knows that.
#[test]
fn a_connection_is_opened_by_both() {
    let mut sides = Sides::new();
    let syn = Tcp::at(100).ack(1).syn();
    sides.ours(&syn.clone().stamp(5, 9).frame());
    assert_eq!(sides.matcher.take_syns().len(), 1);
    assert_eq!(sides.covered(), [], "the other side has not opened it");
    sides.theirs(&syn.stamp(17, 9).window(7).frame());
    assert_eq!(sides.covered(), [0]);
    assert_eq!(sides.matcher.done(), 1);
    sides.theirs(&Tcp::at(101).ack(9).data(b"hi").frame());
    sides.ours(&Tcp::at(101).ack(9).data(b"hi").frame());
    assert_eq!(sides.covered(), [1]);
    // Said again, both in this slot and in the next.
    sides.ours(&Tcp::at(100).ack(1).syn().stamp(6, 9).frame());
    sides.matcher.begin(true);
    sides.ours(&Tcp::at(100).ack(1).syn().stamp(7, 9).frame());
    assert_eq!(
        sides.covered(),
        [3],
        "the sync explains what came before it"
    );
    sides.theirs(&Tcp::at(100).ack(1).syn().stamp(8, 9).frame());
    assert_eq!(sides.matcher.difference(), None);
}

#[test]
fn a_connection_that_is_opened_in_two_ways_needs_a_sync() {
    let syn = Tcp::at(100).ack(1).syn();
    let scaled = |by| syn.clone().option(TcpOptionElement::WindowScale(by));
    for theirs in [
        Tcp::at(555).ack(1).syn(),
        Tcp::at(100).ack(2).syn(),
        Tcp::at(100).syn(),
        scaled(8),
        syn.clone(),
        scaled(7).data(b"early"),
    ] {
        let mut sides = Sides::new();
        sides.ours(&scaled(7).frame());
        sides.theirs(&theirs.frame());
        assert_eq!(sides.covered(), [], "{theirs:?}");
        assert_eq!(sides.matcher.difference(), Some(Difference::Syn));
        sides.matcher.begin(true);
        assert_eq!(sides.matcher.difference(), None);
        // The sync has given the other side our number.
        sides.theirs(&Tcp::at(101).ack(9).data(b"hi").frame());
        sides.ours(&Tcp::at(101).ack(9).data(b"hi").frame());
        assert_eq!(sides.covered(), [1]);
    }
}

#[test]
fn a_port_that_is_used_again_is_another_connection() {
    let mut sides = Sides::new();
    for (i, start) in [(0, 100), (2, 9_000_000)] {
        let (syn, bye) = (Tcp::at(start).ack(7).syn(), Tcp::at(start + 1).ack(8).fin());
        for frame in [syn.frame(), bye.frame()] {
            sides.ours(&frame);
            sides.theirs(&frame);
        }
        assert_eq!(sides.covered(), [i, i + 1]);
    }
    assert_eq!(sides.matcher.done(), 4);
}

#[test]
fn the_end_of_a_stream_has_its_place() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(0).data(b"bye").fin().frame());
    sides.theirs(&Tcp::at(0).data(b"bye").frame());
    assert_eq!(sides.covered(), []);
    sides.theirs(&Tcp::at(3).fin().frame());
    assert_eq!(sides.covered(), [0]);
    // After the FIN a guest still acknowledges, and may send its FIN again.
    sides.ours(&Tcp::at(4).ack(7).frame());
    sides.theirs(&Tcp::at(4).ack(7).frame());
    sides.ours(&Tcp::at(3).ack(7).fin().frame());
    assert_eq!(sides.covered(), [1, 2]);
    assert_eq!(sides.matcher.difference(), None);
    // Also in the next slot.
    sides.matcher.begin(true);
    sides.ours(&Tcp::at(3).ack(7).fin().frame());
    assert_eq!(sides.covered(), [3]);
    assert_eq!(sides.matcher.difference(), None);
}

#[test]
fn a_connection_that_ends_differs_from_one_that_goes_on() {
    for ours_ends in [true, false] {
        let mut sides = Sides::new();
        let (end, more) = (Tcp::at(0).fin().frame(), Tcp::at(0).data(b"more").frame());
        let (ours, theirs) = if ours_ends { (end, more) } else { (more, end) };
        sides.ours(&ours);
        sides.theirs(&theirs);
        assert_eq!(sides.covered(), []);
        assert_eq!(sides.matcher.difference(), Some(Difference::Stream));
    }
}

#[test]
fn a_reset_waits_for_the_data_before_it() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(0).data(b"last words").frame());
    sides.ours(&Tcp::at(10).ack(4).rst().frame());
    sides.theirs(&Tcp::at(10).ack(4).rst().frame());
    assert_eq!(sides.covered(), []);
    sides.theirs(&Tcp::at(0).data(b"last words").frame());
    assert_eq!(sides.covered(), [0, 1]);
}

#[test]
fn a_reset_of_another_place_is_another() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(10).rst().frame());
    sides.theirs(&Tcp::at(12).rst().frame());
    assert_eq!(sides.covered(), []);
}

/// The sync explains all that was sent before it. A client may need an output of that time again.
#[test]
fn a_retransmission_after_a_sync_goes_out() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(100).ack(8).data(b"lost on the way").frame());
    sides.matcher.begin(true);
    sides.ours(&Tcp::at(100).ack(8).data(b"lost on the way").frame());
    assert_eq!(sides.covered(), [1]);
    // A matcher that has not followed does not know, and waits.
    sides.matcher.begin(false);
    sides.ours(&Tcp::at(100).ack(8).data(b"lost on the way").frame());
    assert_eq!(sides.covered(), []);
}

#[test]
fn a_gap_in_either_stream_is_a_difference() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(0).data(b"a").frame());
    sides.theirs(&Tcp::at(0).data(b"a").frame());
    sides.theirs(&Tcp::at(5).data(b"f").frame());
    assert_eq!(sides.covered(), [0]);
    assert_eq!(sides.matcher.difference(), Some(Difference::Gap));
}

#[test]
fn datagrams_are_compared_one_by_one_in_their_flow() {
    let mut sides = Sides::new();
    sides.ours(&udp(5000, b"one"));
    sides.ours(&udp(5001, b"other flow"));
    sides.ours(&udp(5000, b"two"));
    sides.theirs(&udp(5001, b"other flow"));
    assert_eq!(sides.covered(), [1]);
    assert_eq!(sides.matcher.done(), 1);
    sides.theirs(&udp(5000, b"one"));
    sides.theirs(&udp(5000, b"too"));
    assert_eq!(sides.covered(), [0]);
    assert_eq!(sides.matcher.difference(), Some(Difference::Datagram));
    sides.theirs(&udp(5000, b"two"));
    sides.ours(&udp(5000, b"two"));
    assert_eq!(sides.covered(), [], "their places have shifted");
}

#[test]
fn pings_and_arp_match_as_they_are() {
    let mut sides = Sides::new();
    for frame in [
        icmp(1, b"ping"),
        arp(9),
        Frame(vec![1, 2, 3]),
        Frame(vec![]),
    ] {
        let no = sides.ours(&frame);
        sides.theirs(&frame);
        assert_eq!(sides.covered(), [no]);
    }
    sides.ours(&icmp(2, b"ping"));
    sides.theirs(&icmp(3, b"ping"));
    assert_eq!(sides.covered(), []);
    assert_eq!(sides.matcher.difference(), Some(Difference::Datagram));
}
