//! Guests whose sequence numbers differ, translated: what clients and the comparing get to see.

use crate::frames::{Tcp, offloaded, udp};
use etherparse::TcpOptionElement;
use plover_matching::{LeaderSyn, Matcher, Outgoing, SequenceTranslator};
use plover_types::{Frame, Micros, OutputNo, SyncNo};
use proptest::prelude::*;

const NOW: Micros = Micros(1);
const SYNC: SyncNo = SyncNo(1);

/// The leader's message about this SYN of its guest.
fn told(syn: &Tcp) -> LeaderSyn {
    let mut matcher = Matcher::new(1000);
    matcher.begin(false);
    matcher.ours(OutputNo(0), &syn.frame());
    matcher.take_syns()[0]
}

/// A secondary's, in a slot that is compared.
fn compared() -> SequenceTranslator {
    let mut translator = SequenceTranslator::default();
    translator.begin(SYNC, true, &[]);
    translator
}

/// A secondary's whose guest has answered a client's SYN with `own` where the leader's has with
/// `leaders`.
/// Their clocks are as far apart as their numbers.
fn open(own: u32, leaders: u32) -> SequenceTranslator {
    let mut translator = compared();
    let syn = |seq| Tcp::at(seq).ack(5).syn().stamp(seq, 3);
    assert_eq!(
        translator.outgoing(NOW, syn(own).frame()),
        Outgoing::Waits,
        "nobody knows yet what clients will know"
    );
    assert_eq!(
        translator.on_leader_syn(SYNC, told(&syn(leaders))),
        [syn(leaders).frame()]
    );
    translator
}

fn goes(translator: &mut SequenceTranslator, tcp: &Tcp) -> Frame {
    match translator.outgoing(NOW, tcp.frame()) {
        Outgoing::Passes(frame) => frame,
        other => panic!("{other:?}"),
    }
}

proptest! {
    /// A renumbered segment is the one that a guest with these numbers would have sent: the
    /// checksum, all options and the payload included.
    #[test]
    fn renumbered_is_as_if_sent_so(
        own in any::<u32>(),
        leaders in any::<u32>(),
        at in any::<u32>(),
        peers in any::<u32>(),
        stamp in prop::option::of((any::<u32>(), 1..u32::MAX)),
        clocks in any::<(u32, u32)>(),
        sack in prop::option::of(any::<(u32, u32)>()),
        data in prop::collection::vec(any::<u8>(), 0..40),
        nops in 0..4usize,
        v6 in any::<bool>(),
    ) {
        let mut translator = compared();
        let of = |tcp: Tcp| if v6 { tcp.v6() } else { tcp };
        let syn = |seq, clock| of(Tcp::at(seq).ack(5).syn().stamp(clock, 1));
        translator.on_leader_syn(SYNC, told(&syn(leaders, clocks.1)));
        prop_assert_eq!(
            goes(&mut translator, &syn(own, clocks.0)),
            syn(leaders, clocks.1).frame()
        );
        let shift = own.wrapping_sub(leaders);
        let clock = clocks.0.wrapping_sub(clocks.1);
        let dressed = |mut tcp: Tcp, by: u32, (sent, echoed): (u32, u32)| {
            for _ in 0..nops {
                tcp = tcp.option(TcpOptionElement::Noop);
            }
            if let Some((value, echo)) = stamp {
                tcp = tcp.stamp(value.wrapping_add(sent), echo.wrapping_add(echoed));
            }
            if let Some((from, to)) = sack {
                tcp = tcp.sack(from.wrapping_add(by), to.wrapping_add(by));
            }
            of(tcp.data(&data))
        };
        // A guest's own SACK is about its peer's translator, which nobody moves.
        let sent = dressed(Tcp::at(at.wrapping_add(shift)).ack(peers), 0, (clock, 0));
        let known = dressed(Tcp::at(at).ack(peers), 0, (0, 0));
        prop_assert_eq!(goes(&mut translator, &sent), known.frame());
        let asked = dressed(Tcp::at(peers).ack(at), 0, (0, 0)).inward();
        let fed = dressed(Tcp::at(peers).ack(at.wrapping_add(shift)), shift, (0, clock)).inward();
        prop_assert_eq!(translator.incoming(NOW, asked.frame()), fed.frame());
        // A checksum that others complete does not depend on what was moved.
        let passed = translator.outgoing(NOW, offloaded(&sent, 1448));
        prop_assert_eq!(passed, Outgoing::Passes(offloaded(&known, 1448)));
        let got = translator.incoming(NOW, offloaded(&asked, 1448));
        prop_assert_eq!(got, offloaded(&fed, 1448));
    }

    /// Any bytes pass, and come out as long as they were.
    #[test]
    fn noise_is_harmless(bytes in prop::collection::vec(any::<u8>(), 0..120), at in 0..120usize) {
        let mut translator = open(9, 100);
        let mut noisy = Tcp::at(3).ack(4).stamp(1, 2).sack(5, 6).frame();
        for (place, byte) in noisy.0.iter_mut().skip(at).zip(&bytes) {
            *place = *byte;
        }
        for frame in [Frame(bytes), noisy] {
            let length = frame.0.len();
            prop_assert_eq!(translator.incoming(NOW, frame.clone()).0.len(), length);
            match translator.outgoing(NOW, frame) {
                Outgoing::Passes(frame) => prop_assert_eq!(frame.0.len(), length),
                Outgoing::Waits => {}
                Outgoing::Dropped => prop_assert!(false, "there is room"),
            }
        }
    }
}

/// Two guests that open a connection together are compared from its first byte on.
#[test]
fn a_connection_needs_no_sync() {
    let (mut translator, mut matcher) = (compared(), Matcher::new(1 << 20));
    matcher.begin(false);
    let (leaders, own) = (u32::MAX - 1, 70);
    for (i, frame) in [
        Tcp::at(leaders).ack(5).syn().stamp(1000, 1),
        Tcp::at(leaders.wrapping_add(1)).ack(9).data(b"hello"),
        Tcp::at(4).ack(9).fin(),
    ]
    .into_iter()
    .enumerate()
    {
        matcher.ours(OutputNo(i as u64), &frame.frame());
    }
    let mut said = Vec::new();
    for opened in matcher.take_syns() {
        said.extend(translator.on_leader_syn(SYNC, opened));
    }
    for frame in [
        Tcp::at(own).ack(5).syn().stamp(1007, 1),
        Tcp::at(own + 1).ack(9).data(b"hello"),
        Tcp::at(own + 6).ack(9).fin(),
    ] {
        said.push(goes(&mut translator, &frame));
    }
    for frame in &said {
        matcher.theirs(frame);
    }
    assert_eq!(matcher.take_covered().len(), 3);
    assert_eq!(matcher.difference(), None);
    // The leader's clock is the one that clients know, and its echo comes as one of ours.
    assert_eq!(
        goes(&mut translator, &Tcp::at(own + 6).ack(9).stamp(1020, 4)),
        Tcp::at(leaders.wrapping_add(6))
            .ack(9)
            .stamp(1013, 4)
            .frame()
    );
    let asked = Tcp::at(9).ack(leaders.wrapping_add(6)).inward();
    let fed = Tcp::at(9).ack(own + 6).inward();
    assert_eq!(
        translator.incoming(NOW, asked.stamp(4, 1003).frame()),
        fed.stamp(4, 1010).frame()
    );
}

/// The connections that clients have keep their numbers when their secondary leads, and new ones
/// have its own.
#[test]
fn a_new_leader_goes_on_renumbering() {
    let mut translator = open(1000, 5000);
    let unknown = Tcp::at(77).ack(6).syn().port(4001);
    assert_eq!(translator.outgoing(NOW, unknown.frame()), Outgoing::Waits);
    assert_eq!(
        translator.stop(),
        [unknown.frame()],
        "no client knows another"
    );
    assert_eq!(
        goes(&mut translator, &Tcp::at(1001).ack(8).stamp(1009, 4)),
        Tcp::at(5001).ack(8).stamp(5009, 4).frame(),
        "an older stamp than the leader's would be dropped"
    );
    assert_eq!(
        goes(&mut translator, &Tcp::at(1000).ack(5).syn().stamp(1000, 3)),
        Tcp::at(5000).ack(5).syn().stamp(5000, 3).frame(),
        "the client may not have got it"
    );
    let ack = |number: u32| Tcp::at(6).ack(number).stamp(7, number).inward();
    assert_eq!(
        translator.incoming(NOW, ack(5001).frame()),
        ack(1001).frame()
    );
    assert_eq!(goes(&mut translator, &unknown), unknown.frame());
    // The port is used again: the new connection is this guest's alone.
    for tcp in [Tcp::at(31).ack(90).syn(), Tcp::at(32).ack(91)] {
        assert_eq!(goes(&mut translator, &tcp), tcp.frame());
    }
    assert_eq!(translator.translations(NOW), []);
}

/// Two guests that draw one number by chance, or send a SYN again after a sync, have two clocks.
#[test]
fn a_clock_alone_is_translated_too() {
    let mut translator = compared();
    let syn = |clock| Tcp::at(100).ack(5).syn().stamp(clock, 3);
    translator.on_leader_syn(SYNC, told(&syn(9000)));
    assert_eq!(goes(&mut translator, &syn(1000)), syn(9000).frame());
    translator.stop();
    let mut next = SequenceTranslator::default();
    next.begin(SyncNo(2), true, &translator.translations(NOW));
    for translator in [&mut translator, &mut next] {
        let sent = |clock| Tcp::at(101).ack(6).stamp(clock, 4);
        assert_eq!(goes(translator, &sent(1001)), sent(9001).frame());
        let asked = |echo| Tcp::at(6).ack(101).stamp(4, echo).inward().frame();
        assert_eq!(translator.incoming(NOW, asked(9001)), asked(1001));
        assert_eq!(translator.incoming(NOW, asked(0)), asked(0), "no echo");
    }
}

/// Of two guests only one of which has a clock, neither's is translated.
#[test]
fn a_clock_that_one_guest_lacks_stays() {
    let mut translator = compared();
    translator.on_leader_syn(SYNC, told(&Tcp::at(700).ack(5).syn()));
    let syn = |seq| Tcp::at(seq).ack(5).syn().stamp(1000, 3);
    assert_eq!(goes(&mut translator, &syn(100)), syn(700).frame());
    let sent = |seq| Tcp::at(seq).ack(6).stamp(1001, 4);
    assert_eq!(goes(&mut translator, &sent(101)), sent(701).frame());
}

/// A new secondary has the new leader's memory, and so its translator.
#[test]
fn the_table_travels_with_the_memory() {
    let mut leaders = open(1000, 5000);
    leaders.stop();
    let mut translator = SequenceTranslator::default();
    translator.begin(SyncNo(2), true, &leaders.translations(NOW));
    assert_eq!(
        goes(&mut translator, &Tcp::at(1001).ack(8).stamp(1002, 1)),
        Tcp::at(5001).ack(8).stamp(5002, 1).frame()
    );
    // A SYN that both send again is told with the number that clients know.
    let syn = Tcp::at(5000).ack(5).syn();
    assert_eq!(translator.on_leader_syn(SyncNo(2), told(&syn)), []);
    assert_eq!(
        goes(&mut translator, &Tcp::at(1000).ack(5).syn()),
        syn.frame()
    );
    // The next state has no such connection.
    translator.begin(SyncNo(3), true, &[]);
    assert_eq!(
        goes(&mut translator, &Tcp::at(1001).ack(8)),
        Tcp::at(1001).ack(8).frame()
    );
}

#[test]
fn the_leader_may_open_first_even_before_the_slot_begins_here() {
    let mut translator = compared();
    let syn = |seq| Tcp::at(seq).ack(5).syn();
    assert_eq!(translator.on_leader_syn(SyncNo(2), told(&syn(800))), []);
    translator.begin(SyncNo(2), true, &[]);
    assert_eq!(goes(&mut translator, &syn(3)), syn(800).frame());
    // What was told of the slot before is not of this one.
    assert_eq!(
        translator.on_leader_syn(SYNC, told(&syn(900).port(4001))),
        []
    );
    let other = syn(4).port(4001);
    assert_eq!(translator.outgoing(NOW, other.frame()), Outgoing::Waits);
}

#[test]
fn frames_after_a_syn_wait_with_it() {
    let mut translator = compared();
    let syn = |seq| Tcp::at(seq).ack(5).syn().frame();
    assert_eq!(translator.outgoing(NOW, syn(10)), Outgoing::Waits);
    let reset = |seq| Tcp::at(seq).rst().frame();
    assert_eq!(translator.outgoing(NOW, reset(11)), Outgoing::Waits);
    assert_eq!(
        translator.outgoing(NOW, udp(1, b"x")),
        Outgoing::Passes(udp(1, b"x"))
    );
    let waited = translator.on_leader_syn(SYNC, told(&Tcp::at(40).ack(5).syn()));
    assert_eq!(waited, [syn(40), reset(41)]);
}

#[test]
fn the_answer_to_another_syn_is_another_connection() {
    let mut translator = compared();
    translator.on_leader_syn(SYNC, told(&Tcp::at(700).ack(5).syn()));
    let syn = Tcp::at(10).ack(6).syn().frame();
    assert_eq!(translator.outgoing(NOW, syn), Outgoing::Waits);
    let waited = translator.on_leader_syn(SYNC, told(&Tcp::at(800).ack(6).syn()));
    assert_eq!(waited, [Tcp::at(800).ack(6).syn().frame()]);
}

#[test]
fn a_slot_that_is_not_compared_leaves_numbers_alone() {
    let mut translator = SequenceTranslator::default();
    translator.begin(SYNC, false, &[]);
    let syn = Tcp::at(10).ack(6).syn();
    assert_eq!(goes(&mut translator, &syn), syn.frame());
    assert_eq!(translator.on_leader_syn(SYNC, told(&syn)), []);
    assert_eq!(translator.translations(NOW), []);
}

#[test]
fn ten_thousand_connections_are_opened_at_once() {
    let mut translator = compared();
    let syns = (0..10_000).map(|port| Tcp::at(10 + u32::from(port)).ack(6).syn().port(port));
    let syns: Vec<Tcp> = syns.collect();
    for syn in &syns {
        assert_eq!(translator.outgoing(NOW, syn.frame()), Outgoing::Waits);
    }
    for syn in &syns {
        assert_eq!(translator.on_leader_syn(SYNC, told(syn)), [syn.frame()]);
    }
}

#[test]
fn memory_is_bounded() {
    let mut translator = compared();
    let (mut waits, mut goes) = (0, 0);
    for port in 0..40_000 {
        let syn = Tcp::at(1).ack(5).syn().port(port);
        match translator.outgoing(NOW, syn.frame()) {
            Outgoing::Waits => waits += 1,
            Outgoing::Dropped => panic!("{port}"),
            Outgoing::Passes(frame) => {
                assert_eq!(frame, syn.frame());
                goes += 1;
            }
        }
    }
    assert!((10_000..20_000).contains(&waits) && goes > 0, "{waits}");
    let long = Tcp::at(2).ack(5).data(&[1; 1000]).port(7).frame();
    let mut long_waits = || translator.outgoing(NOW, long.clone()) == Outgoing::Waits;
    let more = (0..10_000).take_while(|_| long_waits()).count();
    assert!((1..5000).contains(&more), "{more} of a kilobyte");
    assert_eq!(translator.stop().len(), waits + more);
}

#[test]
fn a_connection_that_both_have_closed_is_forgotten_in_time() {
    let mut translator = open(1000, 5000);
    translator.stop();
    goes(&mut translator, &Tcp::at(1001).fin());
    assert_eq!(translator.translations(Micros::from_ms(900_000)).len(), 1);
    translator.incoming(NOW, Tcp::at(6).ack(5002).fin().inward().frame());
    assert_eq!(translator.translations(Micros::from_ms(1000)).len(), 1);
    assert_eq!(translator.translations(Micros::from_ms(900_000)).len(), 0);
}

/// Anybody may send an RST with a number that the guest refuses (RFC 5961 §3).
#[test]
fn a_connection_that_goes_on_after_an_rst_is_kept() {
    let mut translator = open(1000, 5000);
    translator.stop();
    translator.incoming(NOW, Tcp::at(77_777).ack(5001).rst().inward().frame());
    let later = Micros::from_ms(200_000);
    translator.incoming(later, Tcp::at(6).ack(5001).data(b"?").inward().frame());
    assert_eq!(translator.translations(Micros::from_ms(300_000)).len(), 1);
    assert_eq!(translator.translations(Micros::from_ms(900_000)).len(), 0);
}

/// It may be silent for long afterwards, as in a pool.
#[test]
fn a_guest_that_goes_on_has_refused_the_rst() {
    let mut translator = open(1000, 5000);
    translator.stop();
    translator.incoming(NOW, Tcp::at(77_777).ack(5001).rst().inward().frame());
    goes(&mut translator, &Tcp::at(1001).ack(6));
    assert_eq!(translator.translations(Micros::from_ms(900_000)).len(), 1);
    translator.incoming(NOW, Tcp::at(6).ack(5001).rst().inward().frame());
    goes(&mut translator, &Tcp::at(1001).rst());
    assert_eq!(translator.translations(Micros::from_ms(900_000)).len(), 0);
}
