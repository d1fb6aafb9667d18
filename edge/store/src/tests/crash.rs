//! A crash between any two operations.

use crate::directory::Operation;
use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Keeps every operation on a directory, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    operations: Arc<Mutex<Vec<Operation>>>,
}

thread_local! {
    static RECORDING: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

impl Recorder {
    /// The recorder for a directory that is being opened in this thread, if a test wants one.
    pub fn of(_path: &Path) -> Option<Self> {
        RECORDING.with_borrow(Clone::clone)
    }

    pub fn record(&self, operation: Operation) {
        self.operations.lock().unwrap().push(operation);
    }
}
