//! Panics of the code under test, as messages for the report.

use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// The message of a panic inside a simulated world, for its report.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static SIMULATING: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the message of a panic in a simulated world for the report. Panics elsewhere are printed as
/// usual.
fn catch_panics_quietly() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if SIMULATING.get() {
                PANIC.set(Some(info.to_string()));
            } else {
                before(info);
            }
        }));
    });
}

/// The result of `work`, or the message of its panic, which is not printed.
pub fn without_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_panics_quietly();
    SIMULATING.set(true);
    let worked = panic::catch_unwind(AssertUnwindSafe(work));
    SIMULATING.set(false);
    worked.map_err(|_| {
        let message = PANIC.take();
        let message = message.unwrap_or_else(|| "a panic without a message".to_string());
        message.replace('\n', " ")
    })
}
