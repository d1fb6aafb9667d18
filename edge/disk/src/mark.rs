//! A mark of a disk that the guest only reads: hosts whose files differ have different ones.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Pieces that are read, spread over the image, and the bytes of each. Of a larger image it is a sample: it tells two
/// images apart, and not two of which a few blocks differ.
const PIECES: u64 = 64;
const PIECE_BYTES: u64 = 64 << 10;

/// The mark of an image of so many bytes.
///
/// # Errors
/// It cannot be read.
pub(crate) fn of(file: &File, bytes: u64) -> io::Result<u64> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes.to_le_bytes());
    let mut piece = vec![0; PIECE_BYTES.min(bytes) as usize];
    let last = bytes - piece.len() as u64;
    let mut next = 0;
    for number in 0..PIECES {
        // The first piece is at the beginning, the last one at the end; of a small image they touch.
        let at = next.max(last * number / (PIECES - 1)).min(last);
        file.read_exact_at(&mut piece, at)?;
        hasher.update(&piece);
        next = at + piece.len() as u64;
        if next >= bytes {
            break;
        }
    }
    let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    Ok(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_other_content_or_size_have_other_marks() {
        let mark = |bytes: u64, changed: Option<u64>| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(bytes).unwrap();
            if let Some(at) = changed {
                file.write_all_at(b"x", at).unwrap();
            }
            of(&file, bytes).unwrap()
        };
        for bytes in [4096, PIECE_BYTES + 4096, 3 << 20, 700 << 20] {
            let same = mark(bytes, None);
            assert_eq!(same, mark(bytes, None));
            assert_ne!(same, mark(bytes + 4096, None));
            for at in [0, bytes - 1] {
                assert_ne!(same, mark(bytes, Some(at)), "{bytes} bytes, at {at}");
            }
        }
        // A small one is read whole.
        assert_ne!(mark(3 << 20, None), mark(3 << 20, Some(1_234_567)));
    }
}
