//! A broken or hostile peer can end the link by what it writes, and nothing else; and which doorbells
//! are rung.

use super::memory::Cell;
use super::*;
use crate::tests::{Pair, R0, R1};
use crate::{Fabric, FabricEvent};
use proptest::prelude::*;
use rustix::event::epoll;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::thread;

const RING_BYTES: usize = 4096;

fn new_group() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm-unit-{}-{next}", std::process::id())
}

fn open(group: &str, me: ReplicaId, others: &[ReplicaId]) -> ShmFabric {
    let mut config = ShmConfig::new(group, me, others.to_vec());
    config.ring_bytes = [RING_BYTES; 2];
    ShmFabric::new(config).unwrap()
}

/// Replica 0 writes what it wants, replica 1 is its victim.
fn pair() -> Pair<Shm> {
    let group = new_group();
    Pair::linked(open(&group, R0, &[R1]), open(&group, R1, &[R0]))
}

impl Pair<Shm> {
    /// The peer writes to the victim's memory, past its own code.
    fn poke(&self, cell: Cell, value: u64) {
        self.peer_channel()
            .outbound
            .cell(cell)
            .store(value, Ordering::Release);
    }

    fn scribble(&self, lane: Lane, offset: usize, bytes: &[u8]) {
        self.peer_channel().outbound.write(lane, offset, bytes);
    }

    fn peer_channel(&self) -> &channel::Channel {
        self.lower.link()
    }

    fn victim_ends_the_link(mut self) {
        self.higher.progress(&mut self.at_higher);
        assert_eq!(self.at_higher, [FabricEvent::Down(R0)]);
        assert_eq!(self.higher.stats().damaged, 1);
        // And both come back with fresh memory.
        self.until(Self::is_up);
        let before = self.higher.stats().log.bytes_in;
        self.lower.write(R1, Lane::Log, b"whole").unwrap();
        self.until(|pair| pair.higher.stats().log.bytes_in > before);
    }
}

/// Impossible tails and credits, a record that changes, noise on the socket after the handshake.
#[test]
fn what_no_correct_peer_does_ends_the_link() {
    let damages: [fn(&mut Pair<Shm>); 9] = [
        |pair| pair.poke(Cell::Tail(Lane::Log), 1),
        |pair| pair.poke(Cell::Tail(Lane::Log), 8),
        |pair| pair.poke(Cell::Tail(Lane::Log), 15),
        |pair| pair.poke(Cell::Tail(Lane::Log), RING_BYTES as u64 + 8),
        |pair| pair.poke(Cell::Tail(Lane::Log), u64::MAX),
        |pair| pair.poke(Cell::Tail(Lane::Bulk), 0),
        |pair| pair.poke(Cell::Head(Lane::Log), 8),
        |pair| {
            pair.lower.write(R1, Lane::Log, &[1; 100]).unwrap();
            pair.scribble(Lane::Log, 50, &[2]);
        },
        |pair| assert!(rustix::io::write(&pair.peer_channel().socket, b"noise").is_ok()),
    ];
    for damage in damages {
        let mut pair = pair();
        pair.lower.write(R1, Lane::Bulk, &[1; 100]).unwrap();
        pair.until(|pair| pair.higher.stats().bulk.bytes_in == 100);
        pair.at_higher.clear();
        damage(&mut pair);
        pair.victim_ends_the_link();
    }
}

/// A sleep that never was costs needless wake-ups only.
#[test]
fn false_sleeps_do_no_harm() {
    let mut pair = pair();
    for number in [u64::MAX >> 20, 3, 3, 0, 1] {
        let awaited = Awaited::ANY;
        pair.lower
            .transport()
            .page
            .sleeps(Sleep { number, awaited });
        pair.higher.write(R0, Lane::Log, b"record").unwrap();
        pair.higher.flush();
    }
    pair.until(|pair| pair.lower.stats().log.bytes_in == 5 * 6);
}

#[derive(Clone, Debug)]
enum Stroke {
    Scribble(Lane, usize, Vec<u8>),
    Poke(usize, u64),
    Write(Lane, usize),
    Look,
}

fn strokes() -> impl Strategy<Value = Vec<Stroke>> {
    let lane = prop_oneof![Just(Lane::Log), Just(Lane::Bulk)];
    let near = prop_oneof![
        0..256u64,
        Just(RING_BYTES as u64),
        Just(u64::MAX),
        any::<u64>()
    ];
    let small_words = prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 1..64);
    let stroke = prop_oneof![
        3 => (lane.clone(), 0..RING_BYTES - 64, small_words)
            .prop_map(|(lane, offset, bytes)| Stroke::Scribble(lane, offset / 8 * 8, bytes)),
        2 => (0..4usize, near).prop_map(|(cell, value)| Stroke::Poke(cell, value)),
        3 => (lane, 0..600usize).prop_map(|(lane, bytes)| Stroke::Write(lane, bytes)),
        2 => Just(Stroke::Look),
    ];
    prop::collection::vec(stroke, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever is written there: no panic, no record that was not written, no busy waiting.
    #[test]
    fn noise_in_the_memory_is_no_record(strokes in strokes()) {
        let cells = [
            Cell::Tail(Lane::Log),
            Cell::Tail(Lane::Bulk),
            Cell::Head(Lane::Log),
            Cell::Head(Lane::Bulk),
        ];
        let mut pair = pair();
        for stroke in strokes.into_iter().chain([Stroke::Look, Stroke::Look]) {
            match stroke {
                Stroke::Scribble(lane, offset, bytes) => pair.scribble(lane, offset, &bytes),
                Stroke::Poke(cell, value) => pair.poke(cells[cell], value),
                // The ring may be full, by the peer's own doing.
                Stroke::Write(lane, bytes) => {
                    let _ = pair.lower.write(R1, lane, &vec![0xa5; bytes]);
                }
                Stroke::Look => {
                    // The victim's own writes must not be refused forever either.
                    let _ = pair.higher.write(R0, Lane::Log, &[7; 500]);
                    pair.higher.progress(&mut pair.at_higher);
                    for event in pair.at_higher.drain(..) {
                        match event {
                            FabricEvent::Record { bytes, .. } => {
                                prop_assert!(bytes.iter().all(|byte| *byte == 0xa5));
                            }
                            FabricEvent::Down(_) => {
                                prop_assert_eq!(pair.higher.stats().damaged, 1);
                                return Ok(());
                            }
                            _ => {}
                        }
                    }
                    let at_rest = pair.higher.timeout() != Some(Duration::ZERO);
                    prop_assert!(at_rest, "it keeps looking at what will never be a record");
                }
            }
        }
    }
}

fn one_of(ids: &[ReplicaId]) -> Awaited {
    let from = ReplicaSet::of(ids.iter().copied());
    Awaited { from, count: 1 }
}

#[test]
fn only_those_that_are_to_end_a_sleep_see_it() {
    let mut pair = pair();
    let sleep_seen = |pair: &Pair<Shm>| {
        Sleep::read(pair.peer_channel().page.sleep().load(Ordering::Acquire), R0)
    };
    for (peers, is_seen) in [
        (Some(one_of(&[])), false),
        (Some(one_of(&[R0])), true),
        (None, true),
        (Some(one_of(&[R1])), false),
    ] {
        // Asked twice: the second sleep takes the place of the first one.
        for peers in [None, peers] {
            pair.higher.wake_for(peers);
            assert_ne!(pair.higher.timeout(), Some(Duration::ZERO));
        }
        assert_eq!(sleep_seen(&pair).is_some(), is_seen, "{peers:?}");
        pair.higher.progress(&mut pair.at_higher);
        assert_eq!(sleep_seen(&pair), None, "awake");
        assert_ne!(pair.higher.timeout(), Some(Duration::ZERO));
        assert!(sleep_seen(&pair).is_some(), "any peer ends the next sleep");
        pair.higher.progress(&mut pair.at_higher);
    }
}

/// A record that is there already does not end a sleep that other peers are to end; it is found
/// afterwards.
#[test]
fn what_others_have_written_keeps_nobody_awake() {
    let mut pair = pair();
    pair.lower.write(R1, Lane::Log, b"record").unwrap();
    pair.lower.flush();
    for (peers, is_awake) in [
        (Some(one_of(&[R1])), false),
        (Some(one_of(&[R0])), true),
        (None, true),
    ] {
        pair.higher.wake_for(peers);
        let stays = pair.higher.timeout() == Some(Duration::ZERO);
        assert_eq!(stays, is_awake, "{peers:?}");
    }
    pair.higher.progress(&mut pair.at_higher);
    assert_eq!(pair.higher.stats().log.bytes_in, 6);
}

/// A leader and four backups, all of them linked to each other.
fn five() -> (Vec<ShmFabric>, Vec<FabricEvent>) {
    let ids = [0, 1, 2, 3, 4].map(ReplicaId);
    let group = new_group();
    let others = |me: ReplicaId| ids.into_iter().filter(move |id| *id != me);
    let open = |me| open(&group, me, &others(me).collect::<Vec<_>>());
    let mut fabrics: Vec<_> = ids.into_iter().map(open).collect();
    let mut events = vec![];
    let is_linked = |it: &ShmFabric| others(it.me()).all(|id| it.is_up(id));
    while !fabrics.iter().all(is_linked) {
        fabrics.iter_mut().for_each(|it| it.progress(&mut events));
    }
    (fabrics, events)
}

/// Of the peers that are waited for, the one that completes the number rings.
#[test]
fn who_completes_the_number_rings() {
    let (mut fabrics, mut events) = five();
    let from = ReplicaSet::of([1, 2, 4].map(ReplicaId));
    for (count, early, order, rings) in [
        // No peer that is not named, and none before the third.
        (3, None, [3, 2, 4, 1], [false, false, false, true]),
        (3, None, [4, 1, 3, 2], [false, false, false, true]),
        (2, None, [4, 3, 1, 2], [false, false, true, true]),
        // Records from before the sleep count.
        (3, Some(2), [4, 2, 3, 1], [false, false, false, true]),
        (1, None, [3, 4, 3, 3], [false, true, false, false]),
    ] {
        fabrics[0].progress(&mut events);
        let write = |fabrics: &mut [ShmFabric], place: usize| {
            fabrics[place].write(R0, Lane::Log, b"answer").unwrap();
            fabrics[place].flush();
        };
        early
            .into_iter()
            .for_each(|place| write(&mut fabrics, place));
        fabrics[0].wake_for(Some(Awaited { from, count }));
        assert_ne!(fabrics[0].timeout(), Some(Duration::ZERO));
        let rung = order.map(|place| {
            write(&mut fabrics, place);
            let rings = fabrics[0].links().map(|it| rings_of(&it._own_doorbell));
            rings.sum::<u64>() > 0
        });
        assert_eq!(rung, rings, "{count} {early:?} {order:?}");
    }
}

/// A peer that cannot see whether the others have written does not wait for them.
#[test]
fn who_cannot_count_rings_at_once() {
    let (mut fabrics, mut events) = five();
    fabrics.pop();
    while fabrics.iter().any(|it| it.is_up(ReplicaId(4))) {
        fabrics.iter_mut().for_each(|it| it.progress(&mut events));
    }
    let from = ReplicaSet::of([1, 4].map(ReplicaId));
    fabrics[0].wake_for(Some(Awaited { from, count: 2 }));
    // It sleeps, whether or not it is time to dial the peer that is gone.
    let _ = fabrics[0].timeout();
    fabrics[1].write(R0, Lane::Log, b"answer").unwrap();
    fabrics[1].flush();
    assert_eq!(rings_of(&fabrics[0].link()._own_doorbell), 1);
}

/// How often a doorbell was rung since it was last read.
fn rings_of(doorbell: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    let rung = rustix::io::read(doorbell, &mut bytes).is_ok();
    if rung { u64::from_ne_bytes(bytes) } else { 0 }
}

/// Peers that sleep on another core are rung first, whatever the peers' order.
#[test]
fn those_on_other_cores_are_rung_first() {
    // On another thread, because it is to stay on one core.
    let rung = thread::spawn(|| {
        let here = sched_getcpu();
        let mut only_here = CpuSet::new();
        only_here.set(here);
        sched_setaffinity(None, &only_here).unwrap();
        let (mut fabrics, _) = five();
        // An epoll reports eventfds in the order in which they were written.
        let doorbells = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for (other, far) in fabrics[1..].iter().zip([false, true, false, true]) {
            let doorbell = &other.link()._own_doorbell;
            let id = epoll::EventData::new_u64(other.me().0.into());
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&doorbells, doorbell, id, flags).unwrap();
            assert_ne!(other.timeout(), Some(Duration::ZERO));
            let core = here as u64 + u64::from(far);
            other.transport().page.poke_core(core);
        }
        let _ = epoll_events(&doorbells);
        for id in 1..5 {
            let written = fabrics[0].write(ReplicaId(id), Lane::Log, b"record");
            written.unwrap();
        }
        fabrics[0].flush();
        epoll_events(&doorbells)
    });
    assert_eq!(rung.join().unwrap(), [2, 4, 1, 3]);
}

fn epoll_events(epoll: &OwnedFd) -> Vec<u64> {
    let mut space = [const { std::mem::MaybeUninit::uninit() }; 8];
    let (events, _) = epoll::wait(epoll, &mut space, Some(&Default::default())).unwrap();
    events.iter().map(|event| event.data.u64()).collect()
}
