//! The time in which one core hashes a page. The paper's CityHash took 6.3 µs (PLOVER §6.4). PROMISES.md has our promise.
//! XXH3 is measured beside it: it is what a group of wire version 2 uses, and no defence against a guest.
//!
//! As in a sync, each page is copied out of the guest's memory and hashed in the copy. One benchmark
//! takes pages from a span that no cache holds; the other takes the same few pages again and again, to
//! tell the hash from the memory.
//!
//! ```text
//! ./x bench hash
//! ```

use criterion::{BenchmarkId, Criterion, Throughput};
use plover_types::{HashKey, PAGE_BYTES, PageNo, SplitMix64};
use plover_vm::{PageHasher, hash_subpages};
use std::hint::black_box;

/// Pages of each span. The larger one is 256 MiB: more than any last-level cache that one core of a
/// common server can use.
const SPANS: [(&str, usize); 2] = [("from memory", 1 << 16), ("from the cache", 4)];

/// Divergent pages of a sync whose subpages are hashed under one key.
const SUBPAGES_OF: u32 = 64;

fn hash(criterion: &mut Criterion) {
    let key = [7; 32];
    let hashers = [
        ("universal", PageHasher::new(&HashKey::Universal(key))),
        ("XXH3", PageHasher::new(&HashKey::Xxh3(key))),
    ];
    let mut group = criterion.benchmark_group("hash a page");
    group.throughput(Throughput::Bytes(PAGE_BYTES as u64));
    for (name, pages) in SPANS {
        let mut random = SplitMix64::new(1);
        let memory: Vec<u8> = (0..pages * PAGE_BYTES / 8)
            .flat_map(|_| random.next_u64().to_le_bytes())
            .collect();
        for (function, hasher) in &hashers {
            let mut page = 0;
            group.bench_function(BenchmarkId::new(*function, name), |bencher| {
                bencher.iter(|| {
                    // An odd step visits all pages of a power of two, never in a row: dirty pages lie apart,
                    // and the processor's prefetching does not help them.
                    page = (page + 12_345) % pages;
                    let mut bytes = [0; PAGE_BYTES];
                    bytes.copy_from_slice(&memory[page * PAGE_BYTES..][..PAGE_BYTES]);
                    hasher.digest(black_box(&bytes))
                });
            });
        }
    }
    group.finish();
    let mut group = criterion.benchmark_group("expand a key");
    for (function, key) in [
        ("universal", HashKey::Universal(key)),
        ("XXH3", HashKey::Xxh3(key)),
    ] {
        group.bench_function(function, |bencher| {
            bencher.iter(|| PageHasher::new(black_box(&key)));
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("hash the subpages of a page");
    for (function, key) in [
        ("universal", HashKey::Universal(key)),
        ("XXH3", HashKey::Xxh3(key)),
    ] {
        let pages: Vec<PageNo> = (0..SUBPAGES_OF).map(PageNo).collect();
        group.throughput(Throughput::Elements(pages.len() as u64));
        group.bench_function(function, |bencher| {
            let mut hashes = Vec::new();
            bencher.iter(|| {
                hashes.clear();
                let read = |page: PageNo, to: &mut [u8]| to.fill(page.0 as u8);
                hash_subpages(read, black_box(&key), &pages, &mut hashes);
            });
        });
    }
    group.finish();
}

// Instead of criterion's own macros, which would make a public function without documentation.
fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    hash(&mut criterion);
    criterion.final_summary();
}
