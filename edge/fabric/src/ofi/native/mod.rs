//! libfabric, as far as this fabric uses it: safe wrappers around `native/ofi_shim.c`. Public for the
//! benchmark's floor.
//!
//! Two things are opened. A [`Provider`] is chosen once and stays. A [`Port`] is one end of one
//! lane of one session of a link; it owns the two pieces of memory that are registered with it,
//! so that they cannot go before their registration does.

mod ffi;
mod port;

pub use ffi::Event;
pub use port::{Port, Posted, Run};

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{self, NonNull};
use std::{fmt, io};

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

/// What libfabric said, and to which call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {text}")]
pub struct NativeError {
    /// The call that failed.
    pub call: String,
    /// libfabric's error number, positive.
    pub code: i32,
    /// What the number means, and what the provider added.
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

/// What a provider is like.
#[derive(Clone, Debug)]
pub struct Traits {
    /// As it names itself.
    pub name: String,
    /// Largest write whose buffer is free at once.
    pub inject_bytes: usize,
    /// Largest write at all.
    pub write_bytes: u64,
    /// Width of a memory key.
    pub key_bytes: u64,
    /// Width of the immediate data that a write may carry.
    pub immediate_bytes: u32,
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
        let mut traits = ffi::Traits {
            name: [0; 64],
            inject_bytes: 0,
            write_bytes: 0,
            key_bytes: 0,
            immediate_bytes: 0,
        };
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
        let name: Vec<u8> = traits
            .name
            .iter()
            .map(|&c| c as u8)
            .take_while(|&c| c != 0)
            .collect();
        let traits = Traits {
            name: String::from_utf8_lossy(&name).into_owned(),
            inject_bytes: traits.inject_bytes as usize,
            write_bytes: traits.write_bytes,
            key_bytes: traits.key_bytes,
            immediate_bytes: traits.immediate_bytes,
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

/// What a peer needs to write here: where the endpoint is and the key of its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// As the provider encodes it; unused bytes are zero, the last one always.
    pub name: [u8; NAME_BYTES],
    pub name_bytes: u64,
    pub key: u64,
    /// Remote address of the memory's first byte.
    pub base: u64,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = usize::try_from(self.name_bytes).map_or(0, |bytes| bytes.min(NAME_BYTES));
        write!(f, "Address({} bytes)", used)
    }
}

impl Address {
    fn raw(&self) -> ffi::Address {
        ffi::Address {
            name: self.name,
            name_bytes: self.name_bytes,
            key: self.key,
            base: self.base,
        }
    }
}
