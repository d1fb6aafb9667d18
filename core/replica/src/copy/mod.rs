//! Copying a guest's pages to a replica whose guest stands: to bring up a new secondary, or to keep a witness
//! warm. [`source`] is the sending end and [`stream`] its ledger, [`target`] the receiving end, which is asked with an [`offer`].

pub(crate) mod offer;
mod source;
pub(crate) mod stream;
pub(crate) mod target;

/// The copies that this replica has sent, counted.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// How many were opened; the count names them.
    pub opened: u64,
    /// Bytes of pages.
    pub bytes: u64,
}
