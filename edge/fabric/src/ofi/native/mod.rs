//! libfabric, as far as this fabric uses it: safe wrappers around `native/ofi_shim.c`. Public for the
//! benchmark's floor.
//!
//! Two things are opened. A [`Provider`] is chosen once and stays. A [`Port`] is one end of one
//! lane of one session of a link; it owns the two pieces of memory that are registered with it,
//! so that they cannot go before their registration does.

mod ffi;
mod port;

pub use ffi::{Address, Event, Traits};
pub use port::{Port, Posted, Run};

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use std::ptr::{self, NonNull};

/// Entries of each completion queue. At most [`super::outbound::WINDOW`] writes are under way in
/// each direction, with at most as many credits, so that this cannot overflow.
const QUEUE_ENTRIES: u64 = 1024;
/// Longest address of an endpoint.
pub const NAME_BYTES: usize = 256;

/// -FI_EAGAIN: not now. libfabric's error numbers are the system's, negative.
const AGAIN: c_int = -libc::EAGAIN;
/// -FI_EAVAIL: an error waits in the queue.
const ERROR_AVAILABLE: c_int = -259;
/// -FI_ENOSYS and -FI_EOPNOTSUPP: the provider has no such call.
const NO_CALL: [c_int; 2] = [-libc::ENOSYS, -libc::EOPNOTSUPP];

/// An error of libfabric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {text}")]
pub struct NativeError {
    /// The call that failed.
    pub call: String,
    /// libfabric's error number, positive.
    pub code: i32,
    /// The number in words, and what the provider added.
    pub text: String,
}

impl From<NativeError> for crate::context::Loss {
    fn from(error: NativeError) -> Self {
        Self::Native(error.to_string())
    }
}

impl NativeError {
    fn new(call: impl Into<String>, code: c_int) -> Self {
        // SAFETY: takes any number and returns a static string.
        let text = unsafe { CStr::from_ptr(ffi::plover_ofi_error_text(code)) };
        Self {
            call: call.into(),
            code: -code,
            text: text.to_string_lossy().into_owned(),
        }
    }

    /// A system call that failed beside libfabric's.
    pub fn of_system(call: &str, error: &io::Error) -> Self {
        Self {
            call: call.to_owned(),
            code: error.raw_os_error().unwrap_or(0),
            text: error.to_string(),
        }
    }

    /// The call that the shim named. Callers pass what the shim stored: null or a static string.
    fn named(call: *const c_char, code: c_int) -> Self {
        if call.is_null() {
            return Self::new("libfabric", code);
        }
        // SAFETY: the shim stores only string literals there.
        let call = unsafe { CStr::from_ptr(call) };
        Self::new(call.to_string_lossy(), code)
    }
}

/// The name of a provider, which ends with a zero, as text.
pub fn provider_name(name: &[u8]) -> String {
    let name = name.split(|byte| *byte == 0).next();
    let name = String::from_utf8_lossy(name.unwrap_or_default());
    name.escape_debug().to_string()
}

/// The packed versions of the headers and of the library.
pub fn versions() -> (u32, u32) {
    // SAFETY: both only return a number.
    unsafe {
        (
            ffi::plover_ofi_version_built(),
            ffi::plover_ofi_version_running(),
        )
    }
}

/// An opened provider.
#[derive(Debug)]
pub struct Provider {
    raw: NonNull<ffi::Provider>,
    pub traits: Traits,
}

// SAFETY: libfabric's objects are not bound to a thread.
unsafe impl Send for Provider {}
// SAFETY: the only call on a shared provider opens a domain, and libfabric locks the fabric's list
// of these itself (a fabric is always thread-safe; FI_THREAD_DOMAIN is about what is below).
unsafe impl Sync for Provider {}

impl Provider {
    /// Opens `name` for the interface that has the address `node`, where the provider knows
    /// such addresses.
    pub fn open(name: &str, node: &str) -> Result<Self, NativeError> {
        let text = |text: &str| CString::new(text).map_err(|_| NativeError::new("fi_getinfo", -22));
        let (name, node) = (text(name)?, text(node)?);
        let mut raw = ptr::null_mut();
        let mut failed = ptr::null();
        let mut traits = Traits::NONE;
        // SAFETY: the strings end with a zero and live for the call, the rest is writable and of
        // the types that the shim declares.
        let code = unsafe {
            ffi::plover_ofi_provider_open(
                name.as_ptr(),
                node.as_ptr(),
                &raw mut raw,
                &raw mut traits,
                &raw mut failed,
            )
        };
        let Some(raw) = NonNull::new(raw).filter(|_| code == 0) else {
            return Err(NativeError::named(failed, code));
        };
        Ok(Self { raw, traits })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        // SAFETY: opened by the shim, closed once; every port holds an `Arc` of this, so none is
        // left.
        unsafe { ffi::plover_ofi_provider_close(self.raw.as_ptr()) }
    }
}
