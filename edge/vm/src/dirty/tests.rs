//! Scans of memory of this process.

use super::{DirtyTracker, Failure, track_here, try_here};
use crate::ram::Ram;
use plover_types::{PAGE_BYTES, PageNo, PageSet};

/// The result, unless this kernel lacks the call, which `check_host` reports.
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

/// More runs than one call returns, too.
#[test]
fn a_scan_reports_exactly_what_was_written() {
    const PAGES: u32 = 16_384;
    let mut ram = Ram::new(PAGES as usize * PAGE_BYTES).unwrap();
    let Some(mut tracker) = or_skip(track_here(&ram)) else {
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
