//! The steady state allocates nothing: what a fabric does for each record, it does with buffers
//! that it has. A replica sees hundreds of thousands of records a second.

use crate::contract::{How, Maker};
use crate::makers::{ShmMaker, TcpMaker};
use plover_fabric::{BoxedFabric, FabricEvent, Lane, Mixed};
use plover_types::{ReplicaId, ReplicaSet};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::thread;
use std::time::{Duration, Instant};

const R0: ReplicaId = ReplicaId(0);
const R1: ReplicaId = ReplicaId(1);

/// Counts what the test's own thread asks for; other tests run beside it.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() -> u64 {
    COUNT.with(Cell::get)
}

// SAFETY: all calls go to the system's allocator as they are; the counter allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends allocates without its counter.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are the callee's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sends records of several sizes there and back, `rounds` times, several at once.
fn exchange(fabrics: &mut [BoxedFabric; 2], events: &mut Vec<FabricEvent>, rounds: usize) {
    let payload = [7; 4096];
    let deadline = Instant::now() + Duration::from_secs(60);
    for round in 0..rounds {
        let sizes = [8, 256, 1500, 4096].map(|size| &payload[..size - round % 8]);
        for (from, to) in [(0, R1), (1, R0)] {
            for record in sizes {
                fabrics[from].write(to, Lane::Log, record).expect("room");
            }
            fabrics[from].flush();
        }
        for fabric in &mut *fabrics {
            let mut arrived = 0;
            while arrived < sizes.len() {
                fabric.progress(events);
                for event in events.drain(..) {
                    if let FabricEvent::Record { bytes, .. } = event {
                        arrived += 1;
                        fabric.recycle(bytes);
                    }
                }
                assert!(Instant::now() < deadline, "records do not come");
                // Asked as a caller does that is about to sleep.
                let _ = fabric.timeout();
            }
        }
    }
}

fn allocates_nothing(mut fabrics: [BoxedFabric; 2]) {
    let mut events = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_up = |event: &&FabricEvent| matches!(event, FabricEvent::Up(_));
    while events.iter().filter(is_up).count() < 2 {
        for fabric in &mut fabrics {
            fabric.progress(&mut events);
        }
        assert!(Instant::now() < deadline, "no link");
        thread::sleep(Duration::from_millis(1));
    }
    events.clear();
    // Buffers grow to the largest record, laps of the ring are done.
    exchange(&mut fabrics, &mut events, 100);
    let before = count();
    exchange(&mut fabrics, &mut events, 1000);
    let allocations = count() - before;
    assert_eq!(allocations, 0, "for 8000 records");
}

#[test]
fn counting_counts() {
    let before = count();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(count() - before, 1);
}

/// Of the group's members only these are there.
fn only(ids: &[ReplicaId]) -> How {
    How {
        members: ReplicaSet::of(ids.iter().copied()),
        ..How::default()
    }
}

fn two<M: Maker>(mut maker: M) -> [BoxedFabric; 2]
where
    M::Fabric: Send + 'static,
{
    [R0, R1].map(|id| Box::new(maker.open_with(id, only(&[R0, R1]))) as BoxedFabric)
}

#[test]
fn tcp_allocates_nothing() {
    allocates_nothing(two(TcpMaker::new()));
}

#[test]
fn shm_allocates_nothing() {
    allocates_nothing(two(ShmMaker::new()));
}

#[test]
fn mixed_allocates_nothing() {
    let (mut tcp, mut shm) = (TcpMaker::new(), ShmMaker::new());
    let (r2, fabrics) = (ReplicaId(2), [(R0, R1), (R1, R0)]);
    allocates_nothing(fabrics.map(|(me, other)| {
        let near: BoxedFabric = Box::new(shm.open_with(me, only(&[other])));
        let far: BoxedFabric = Box::new(tcp.open_with(me, only(&[r2])));
        let parts = vec![(near, vec![other]), (far, vec![r2])];
        Box::new(Mixed::new(parts).expect("no peer twice")) as BoxedFabric
    }));
}
