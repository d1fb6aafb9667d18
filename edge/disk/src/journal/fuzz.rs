//! For `crate::fuzz`.

use super::*;

/// A journal in `folder`, with hashes that hold: the fields of a slot, then the blocks.
pub fn journal(folder: &Path, blocks: u32, bytes: &[u8]) {
    let (fields, body) = bytes.split_at(bytes.len().min(FIELDS_BYTES - HASH_BYTES));
    let mut file = fields.to_vec();
    file.resize(FIELDS_BYTES - HASH_BYTES, 0);
    file.extend(blake3::hash(body).as_bytes());
    let hash = blake3::hash(&file);
    file.extend(hash.as_bytes());
    file.resize(BODY_AT as usize, 0);
    file.extend(body);
    let path = folder.join("journal");
    std::fs::write(&path, file).expect("room for a journal");
    if let Ok(journal) = Journal::open(&path, blocks) {
        if let Ok(Some(batch)) = journal.pending() {
            assert!(batch.iter().all(|(block, _)| block.0 < blocks));
        }
    }
}
