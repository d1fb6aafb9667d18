//! Signals that a library took before the program began.

/// Gives SIGINT, SIGTERM and SIGHUP back their default meaning, except those that are ignored (as
/// under `nohup`). To be called first thing in `main`, before other threads: libraries that
/// libfabric loads install handlers that exit at once, and a
/// program that waits for a signal to end in an orderly way would find them called first.
pub fn forget_signal_handlers() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the default and `SIG_IGN` are no code of ours, and by the function's condition
        // no other thread expects a handler to stay.
        unsafe {
            if libc::signal(signal, libc::SIG_DFL) == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}
