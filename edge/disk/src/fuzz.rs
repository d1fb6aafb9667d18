//! Entry points for fuzzing (`proof/fuzz`): the decoders of bytes from outside that are private to this crate.

use crate::DiskSpec;
use crate::disks::Purpose;
use crate::image::Image;
use crate::journal;
use crate::nbd::{self, Backing, Extent};
use plover_types::DISK_BLOCK_BYTES;
use std::io::{self, Cursor, Read, Write};
use std::path::Path;
use std::time::Duration;

const BLOCKS: u32 = 4;

/// A client that says what it is told to, and does not listen.
struct Script<'a>(Cursor<&'a [u8]>);

impl Read for Script<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to)
    }
}

impl Write for Script<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(from.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Plain(Image);

impl Backing for Plain {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn is_read_only(&self) -> bool {
        self.0.read_only
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, to)
    }

    fn tells_extents(&self) -> bool {
        true
    }

    fn extents(&self, _: u64, bytes: u64) -> io::Result<Vec<(u64, Extent)>> {
        Ok(vec![(bytes, Extent::Data)])
    }

    fn change(
        &self,
        _: u64,
        _: u64,
        change: &mut dyn FnMut(&Image) -> io::Result<()>,
    ) -> io::Result<()> {
        change(&self.0)
    }

    fn flush(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn busy(&self, _: bool) {}

    fn failed(&self, what: &str, error: &io::Error) {
        panic!("{what}: {error}");
    }
}

/// All that a QEMU says to its disk, an image in `folder`: the handshake, and what follows.
pub fn nbd(folder: &Path, bytes: &[u8]) {
    let spec = DiskSpec {
        path: folder.join("image"),
        read_only: false,
        bytes: Some(u64::from(BLOCKS) * DISK_BLOCK_BYTES as u64),
        bytes_max: None,
        delay: Duration::ZERO,
    };
    // The guest has written anything there.
    let journal = folder.join("image.journal");
    let image = Image::open(&spec, Some(&journal), Purpose::Copy).expect("an image");
    let _ = nbd::serve(&mut Script(Cursor::new(bytes)), &Plain(image));
}

/// A journal of the disks, in `folder`: the fields of a slot, then blocks.
pub fn journal(folder: &Path, bytes: &[u8]) {
    journal::fuzz::journal(folder, BLOCKS, bytes);
}
