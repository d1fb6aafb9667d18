//! Connections whose place in the stream is not what it was, or not known.

use crate::frames::Tcp;
use crate::matching::Sides;
use plover_matching::Difference;

/// A client uploads, resets, and uses its port again with a lower number. The secondary's guest is late, and what it
/// acknowledges is the upload.
#[test]
fn what_is_late_on_a_port_that_is_used_again_counts_for_nothing() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(100).ack(5000).data(b"old").frame());
    let syn = Tcp::at(9_000_000).ack(7).syn().frame();
    sides.ours(&syn);
    sides.theirs(&Tcp::at(100).ack(5000).data(b"old").frame());
    sides.theirs(&syn);
    let acknowledges = sides.ours(&Tcp::at(9_000_001).ack(4000).frame());
    assert!(!sides.covered().contains(&acknowledges));
    sides.theirs(&Tcp::at(9_000_001).ack(4000).frame());
    assert!(sides.covered().contains(&acknowledges));
}

/// The same on the leader's side: the new stream's place is known, and is not moved to where the former one was.
#[test]
fn a_late_segment_of_a_former_connection_does_not_move_the_place() {
    let mut sides = Sides::new();
    let syn = Tcp::at(100).ack(7).syn().frame();
    sides.ours(&syn);
    sides.theirs(&syn);
    for _ in 0..2 {
        sides.ours(&Tcp::at(9_000_000).ack(7).frame());
    }
    sides.matcher.begin(true);
    let no = sides.ours(&Tcp::at(101).ack(7).data(b"one").frame());
    sides.theirs(&Tcp::at(101).ack(7).data(b"two").frame());
    assert!(!sides.covered().contains(&no));
}

/// The acknowledgement of such a segment is of no input of the new connection, in this slot or a later one.
#[test]
fn a_late_acknowledgement_of_a_former_connection_counts_for_nothing() {
    let mut sides = Sides::new();
    let syn = Tcp::at(100).ack(7).syn().frame();
    sides.ours(&syn);
    sides.theirs(&syn);
    sides.ours(&Tcp::at(9_000_000).ack(500_000).frame());
    sides.matcher.begin(true);
    let no = sides.ours(&Tcp::at(101).ack(400_000).frame());
    sides.theirs(&Tcp::at(101).ack(7).frame());
    assert!(!sides.covered().contains(&no));
    sides.theirs(&Tcp::at(101).ack(400_000).frame());
    assert!(sides.covered().contains(&no));
}

/// A client has acknowledged what was never sent, and the RST that answers it has the client's number. The connection goes
/// on (RFC 9293 §3.10.7.4).
#[test]
fn an_rst_is_no_place_in_the_stream() {
    for begins in [false, true] {
        let mut sides = Sides::new();
        let reset = Tcp::at(9_000_000).rst().frame();
        let no = sides.ours(&reset);
        sides.theirs(&reset);
        assert_eq!(sides.covered(), [no]);
        if begins {
            sides.matcher.begin(true);
        }
        let no = sides.ours(&Tcp::at(101).ack(7).data(b"one").frame());
        sides.theirs(&Tcp::at(101).ack(7).data(b"two").frame());
        assert!(!sides.covered().contains(&no));
        assert_eq!(sides.matcher.difference(), Some(Difference::Content));
    }
}

/// The same on a connection that the two have opened differently.
#[test]
fn an_rst_does_not_move_the_place() {
    let mut sides = Sides::new();
    sides.ours(&Tcp::at(100).ack(7).syn().frame());
    sides.theirs(&Tcp::at(200).ack(7).syn().frame());
    sides.ours(&Tcp::at(9_000_000).rst().frame());
    sides.matcher.begin(true);
    let no = sides.ours(&Tcp::at(101).ack(7).data(b"one").frame());
    sides.theirs(&Tcp::at(101).ack(7).data(b"two").frame());
    assert!(!sides.covered().contains(&no));
}

/// It may end the stream without a FIN (RFC 8684 §3.3.3).
#[test]
fn a_segment_with_an_option_of_mptcp_waits_for_a_sync() {
    let mut sides = Sides::new();
    let mut frame = Tcp::at(101).ack(7).stamp(1, 1).frame();
    let kind = 14 + 20 + 20;
    assert_eq!(frame.0[kind], 8);
    frame.0[kind] = 30;
    sides.ours(&frame);
    sides.theirs(&frame);
    assert_eq!(sides.covered(), []);
    assert_eq!(sides.matcher.difference(), Some(Difference::Special));
}

/// A connection that is not known, or no more, begins with a keep-alive one byte before its place (RFC 9293 §3.8.4).
#[test]
fn a_place_that_was_guessed_too_low_costs_one_sync_and_not_each_one() {
    let mut sides = Sides::new();
    let keep_alive = Tcp::at(999).ack(7).frame();
    sides.ours(&keep_alive);
    sides.theirs(&keep_alive);
    let mut answers = [Tcp::at(1000), Tcp::at(1006)].into_iter();
    let mut both = |sides: &mut Sides| {
        let answer = answers.next().unwrap().ack(8).data(b"answer").frame();
        let no = sides.ours(&answer);
        sides.theirs(&answer);
        sides.covered().contains(&no)
    };
    assert!(!both(&mut sides));
    assert_eq!(sides.matcher.difference(), Some(Difference::Gap));
    sides.matcher.begin(true);
    assert!(both(&mut sides));
    assert_eq!(sides.matcher.difference(), None);
}

/// As many as one slot uses; none is forgotten by the next.
#[test]
fn ten_thousand_connections_are_compared() {
    let mut sides = Sides::new();
    for place in [100, 103] {
        for port in 0..10_000 {
            let frame = Tcp::at(place).ack(7).data(b"one").port(port).frame();
            sides.ours(&frame);
            sides.theirs(&frame);
        }
        assert_eq!(sides.covered().len(), 10_000);
        assert_eq!(sides.matcher.difference(), None);
        sides.matcher.begin(true);
    }
}

/// A client without a connection draws them, as many as it likes.
#[test]
fn many_resets_of_one_connection_match() {
    let mut sides = Sides::new();
    for number in 0..200 {
        let reset = Tcp::at(number).rst().frame();
        let no = sides.ours(&reset);
        sides.theirs(&reset);
        assert_eq!(sides.covered(), [no]);
    }
}
