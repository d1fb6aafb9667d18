//! Scans of memory of this process, with a guest on it and without.

mod kvm;

use super::{CALLS_MAX, DirtyTracker, Failure, GAP, joined, track_here, try_here};
use crate::ram::Ram;
use plover_types::{PAGE_BYTES, PageNo, PageSet};
use proptest::prelude::*;
use std::ops::Range;

/// A tracker, where the kernel can do it; `check_host` reports where it cannot.
fn tracker(ram: &Ram, is_kvm: bool) -> Option<DirtyTracker> {
    or_skip(track_here(ram, is_kvm))
}

fn or_skip<T>(tried: Result<T, Failure>) -> Option<T> {
    match tried {
        Ok(done) => Some(done),
        Err((step, error)) if error.raw_os_error().is_some() => {
            eprintln!("skipped: this kernel lacks {step}: {error}");
            None
        }
        Err((step, error)) => panic!("{step}: {error}"),
    }
}

fn scan(tracker: &mut DirtyTracker, pages: u32) -> Vec<u32> {
    let mut dirty = PageSet::new(pages);
    tracker.scan(&mut dirty).unwrap();
    dirty.iter().map(|page| page.0).collect()
}

#[test]
fn a_scan_reports_a_written_page_once() {
    or_skip(try_here());
}

#[test]
fn a_scan_by_runs_reports_exactly_what_was_written() {
    const PAGES: u32 = 4096;
    let mut ram = Ram::new(PAGES as usize * PAGE_BYTES).unwrap();
    let Some(mut tracker) = tracker(&ram, true) else {
        return;
    };
    scan(&mut tracker, PAGES);
    for each in [1, 2, 5, 17, 1000] {
        let written: Vec<u32> = (0..PAGES).step_by(each).collect();
        for page in &written {
            ram.write(PageNo(*page), &[each as u8; PAGE_BYTES]);
        }
        assert_eq!(scan(&mut tracker, PAGES), written);
        assert!(scan(&mut tracker, PAGES).is_empty());
    }
}

const PAGE: u64 = PAGE_BYTES as u64;

/// Disjoint runs in order, with a page or more between them.
fn runs() -> impl Strategy<Value = Vec<Range<u64>>> {
    let gaps_and_lengths = prop::collection::vec((1..40u64, 1..4u64), 0..3000);
    gaps_and_lengths.prop_map(|all| {
        let mut end = 0;
        let run = |(gap, length)| {
            let start = end + gap * PAGE;
            end = start + length * PAGE;
            start..end
        };
        all.into_iter().map(run).collect()
    })
}

proptest! {
    #[test]
    fn few_calls_cover_all_runs(runs in runs()) {
        let ranges = joined(runs.clone());
        prop_assert!(ranges.len() <= CALLS_MAX);
        prop_assert!(ranges.windows(2).all(|two| two[1].start - two[0].end > GAP));
        let covers = |run: &Range<u64>| ranges.iter().any(|range| range.start <= run.start && run.end <= range.end);
        prop_assert!(runs.iter().all(covers));
        let ends = |range: &Range<u64>| {
            runs.iter().any(|run| run.start == range.start) && runs.iter().any(|run| run.end == range.end)
        };
        prop_assert!(ranges.iter().all(ends), "no range is longer than its runs");
    }
}
