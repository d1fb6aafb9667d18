//! In the steady state an entry on its way to the disk allocates nothing, in no thread.

use apus::{Durability, DurableState, Entry, EntryKind};
use plover_store::{Completion, Options, Store};
use plover_types::{Index, ReplicaId, View, Viewstamp};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts every allocation of the process. This file has one test, so no other test allocates.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the conditions of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the conditions of `dealloc`, and `alloc` was the system's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Makes the next `count` entries durable, a multiple of the five in each batch, and waits for each batch.
fn write(store: &mut Store, done: &mut Vec<Completion>, entry: &mut Entry, count: u64) {
    for number in 0..count {
        let after = store.last();
        entry.viewstamp.index = after.index.next();
        store.persist_entries(after, None, std::slice::from_ref(entry));
        if number % 5 == 4 {
            store.trim(Index(after.index.0.saturating_sub(20)));
            flush(store, done, number % 2 == 0);
        }
    }
}

fn flush(store: &mut Store, done: &mut Vec<Completion>, here: bool) {
    if here {
        store.sync();
    } else {
        store.submit();
    }
    loop {
        store.completions(done);
        match done.last() {
            Some(Completion::EntriesPersisted(last)) if *last == store.last() => break,
            Some(Completion::Failed(error)) => panic!("{error}"),
            _ => {}
        }
        let (fd, flags) = (store.wait_fd(), rustix::event::PollFlags::IN);
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(fd, flags)];
        rustix::event::poll(&mut fds, None).unwrap();
    }
    done.clear();
}

#[test]
fn entries_allocate_nothing_on_their_way_to_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new("group", Durability::Disk);
    let (mut store, _) = Store::open(dir.path(), &options).unwrap();
    let view = View::new(1, ReplicaId(0));
    store.persist_state(DurableState {
        promised: view,
        ..DurableState::default()
    });
    let mut done = Vec::with_capacity(16);
    let mut entry = Entry {
        viewstamp: Viewstamp {
            view,
            index: Index(0),
        },
        kind: EntryKind::App,
        payload: vec![7; 256],
    };
    // Buffers grow to what a batch needs, and the thread that prepares the next segment ends.
    write(&mut store, &mut done, &mut entry, 200);
    drop(store);
    let (mut store, _) = Store::open(dir.path(), &options).unwrap();
    write(&mut store, &mut done, &mut entry, 200);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    write(&mut store, &mut done, &mut entry, 1000);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0, "allocations for 1000 entries");
}
