//! Data and holes of a sparse file or memfd, in pages of [`DISK_BLOCK_BYTES`].
//!
//! A hole is zero and was never written. Reading it would allocate memory for nothing.

use plover_types::DISK_BLOCK_BYTES;
use rustix::fd::AsFd;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

const PAGE: u64 = DISK_BLOCK_BYTES as u64;

/// The first page at or after `page` that may not be zero, or the number of pages. Cheaper than
/// [`next_data`], because it does not look for the end of the data. `bytes` is the file's size, a multiple
/// of a page.
pub fn first_data(file: impl AsFd, bytes: u64, page: u32) -> u32 {
    (data_from(file, bytes, page).unwrap_or(bytes) / PAGE) as u32
}

/// The first run of pages at or after `page` that may not be zero, as its first page and the page after
/// its last; `None` if there is none.
pub fn next_data(file: impl AsFd, bytes: u64, page: u32) -> Option<(u32, u32)> {
    let start = data_from(&file, bytes, page)?;
    let hole = seek(file, SeekFrom::Hole(start)).unwrap_or(bytes);
    let end = hole.min(bytes).div_ceil(PAGE);
    Some(((start / PAGE) as u32, end as u32))
}

/// The first byte of data at or after `page`, which may lie within a page.
fn data_from(file: impl AsFd, bytes: u64, page: u32) -> Option<u64> {
    let at = u64::from(page) * PAGE;
    if at >= bytes {
        return None;
    }
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Some(start),
        Err(Errno::NXIO) => None,
        // The file system does not tell: all is taken as data.
        Err(_) => Some(at),
    }
}
