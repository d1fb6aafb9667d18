//! libfabric, as far as this fabric uses it: safe wrappers around `native/ofi_shim.c`.
//!
//! Two things are opened. A [`Provider`] is chosen once and stays. A [`Port`] is one end of one
//! lane of one session of a link; it owns the two pieces of memory that are registered with it,
//! so that they cannot go before their registration does.

use super::memory::Memory;
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::{fmt, io};

/// Entries of each completion queue. At most [`super::outbound::WINDOW`] writes are under way in
/// each direction, with at most as many credits, so that this cannot overflow.
const QUEUE_ENTRIES: u64 = 1024;
/// Longest address of an endpoint.
pub(super) const NAME_BYTES: usize = 256;

mod ffi {
    use super::{NAME_BYTES, c_char, c_int};

    #[repr(C)]
    pub struct Provider {
        _opaque: [u8; 0],
    }

    #[repr(C)]
    pub struct Port {
        _opaque: [u8; 0],
    }

    #[repr(C)]
    pub struct Traits {
        pub name: [c_char; 64],
        pub inject_bytes: u64,
        pub write_bytes: u64,
        pub key_bytes: u64,
        pub ordered: u32,
        pub immediate_bytes: u32,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Event {
        pub sequence: u64,
        pub immediate: u32,
        pub arrived: u32,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub struct Address {
        pub name: [u8; NAME_BYTES],
        pub name_bytes: u64,
        pub key: u64,
        pub base: u64,
    }

    unsafe extern "C" {
        pub fn plover_ofi_version_built() -> u32;
        pub fn plover_ofi_version_running() -> u32;
        pub fn plover_ofi_error_text(error: c_int) -> *const c_char;
        pub fn plover_ofi_provider_open(
            provider: *const c_char,
            domain: *const c_char,
            node: *const c_char,
            out: *mut *mut Provider,
            traits: *mut Traits,
            failed: *mut *const c_char,
        ) -> c_int;
        pub fn plover_ofi_provider_close(provider: *mut Provider);
        pub fn plover_ofi_port_open(
            provider: *mut Provider,
            waits: c_int,
            queue_entries: u64,
            inbound: *mut u8,
            inbound_bytes: usize,
            outbound: *mut u8,
            outbound_bytes: usize,
            key: u64,
            out: *mut *mut Port,
            address: *mut Address,
            failed: *mut *const c_char,
        ) -> c_int;
        pub fn plover_ofi_port_close(port: *mut Port);
        pub fn plover_ofi_port_wait_fd(port: *const Port) -> c_int;
        pub fn plover_ofi_port_try_wait(port: *mut Port) -> c_int;
        pub fn plover_ofi_port_connect(port: *mut Port, peer: *const Address) -> c_int;
        pub fn plover_ofi_inject(
            port: *mut Port,
            from: u64,
            bytes: u64,
            to: u64,
            immediate: u32,
        ) -> c_int;
        pub fn plover_ofi_write(
            port: *mut Port,
            from: u64,
            bytes: u64,
            to: u64,
            immediate: u32,
            sequence: u64,
            signalled: c_int,
        ) -> c_int;
        pub fn plover_ofi_arrivals(port: *mut Port, events: *mut Event, count: c_int) -> c_int;
        pub fn plover_ofi_completions(port: *mut Port, events: *mut Event, count: c_int) -> c_int;
        pub fn plover_ofi_queue_error(
            port: *mut Port,
            transmit: c_int,
            text: *mut c_char,
            bytes: usize,
        ) -> c_int;
    }
}

pub(super) use ffi::Event;

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
    pub(super) fn of_system(call: &str, error: &io::Error) -> Self {
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
pub(super) fn versions() -> (u32, u32) {
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
pub(super) struct Traits {
    /// As it names itself.
    pub name: String,
    /// Largest write whose buffer is free at once.
    pub inject_bytes: usize,
    /// Largest write at all.
    pub write_bytes: u64,
    /// Width of a memory key.
    pub key_bytes: u64,
    /// Whether writes complete in the order they were posted.
    pub ordered: bool,
    /// Width of the immediate data that a write may carry.
    pub immediate_bytes: u32,
}

/// An opened provider.
#[derive(Debug)]
pub(super) struct Provider {
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
    pub fn open(name: &str, domain: Option<&str>, node: &str) -> Result<Self, NativeError> {
        let text = |text: &str| CString::new(text).map_err(|_| NativeError::new("fi_getinfo", -22));
        let (name, node) = (text(name)?, text(node)?);
        let domain = domain.map(text).transpose()?;
        let mut raw = ptr::null_mut();
        let mut failed = ptr::null();
        let mut traits = ffi::Traits {
            name: [0; 64],
            inject_bytes: 0,
            write_bytes: 0,
            key_bytes: 0,
            ordered: 0,
            immediate_bytes: 0,
        };
        // SAFETY: the strings end with a zero and live for the call, the rest is writable and of
        // the types that the shim declares.
        let code = unsafe {
            ffi::plover_ofi_provider_open(
                name.as_ptr(),
                domain
                    .as_ref()
                    .map_or(ptr::null(), |domain| domain.as_ptr()),
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
            ordered: traits.ordered != 0,
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
pub(super) struct Address {
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

/// Whether the provider took a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Taken,
    /// Its queue is full, or it is still connecting: try again after it made progress.
    NotNow,
    /// It has no such call.
    NoCall,
}

impl Posted {
    fn from_code(call: &'static str, code: c_int) -> Result<Self, NativeError> {
        match code {
            0 => Ok(Self::Taken),
            AGAIN => Ok(Self::NotNow),
            code if NO_CALL.contains(&code) => Ok(Self::NoCall),
            code => Err(NativeError::new(call, code)),
        }
    }
}

/// One write: from the own copy of the ring into the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Offset in the outbound memory and in the peer's inbound memory: they have one layout.
    pub offset: usize,
    pub bytes: usize,
    /// What the peer's queue of arrivals shows.
    pub immediate: u32,
}

/// One end of one lane of one session.
#[derive(Debug)]
pub(super) struct Port {
    raw: NonNull<ffi::Port>,
    /// What the peer writes to.
    pub inbound: Memory,
    /// What our writes are taken from.
    pub outbound: Memory,
    // After the port: it is opened on the provider.
    _provider: Arc<Provider>,
}

// SAFETY: libfabric's objects are not bound to a thread, and all calls take `&mut self` or only
// read what is fixed at opening, which is the serialisation that FI_THREAD_DOMAIN asks for: the
// domain is this port's own.
unsafe impl Send for Port {}

impl Port {
    /// Opens a port whose two memories have `bytes` each; `waits` asks for a wait object, `key`
    /// is proposed as the memory's key to providers that do not choose one themselves.
    pub fn open(
        provider: &Arc<Provider>,
        waits: bool,
        bytes: usize,
        key: u64,
    ) -> Result<(Self, Address), NativeError> {
        let memory =
            || Memory::new(bytes).map_err(|error| NativeError::of_system("mmap of a ring", &error));
        let (inbound, outbound) = (memory()?, memory()?);
        let mut raw = ptr::null_mut();
        let mut failed = ptr::null();
        let mut address = ffi::Address {
            name: [0; NAME_BYTES],
            name_bytes: 0,
            key: 0,
            base: 0,
        };
        // SAFETY: both memories are mapped and stay so until after `plover_ofi_port_close`, as
        // they are fields of the value whose `drop` calls it; the provider is kept likewise.
        let code = unsafe {
            ffi::plover_ofi_port_open(
                provider.raw.as_ptr(),
                c_int::from(waits),
                QUEUE_ENTRIES,
                inbound.start(),
                inbound.bytes(),
                outbound.start(),
                outbound.bytes(),
                key,
                &raw mut raw,
                &raw mut address,
                &raw mut failed,
            )
        };
        let Some(raw) = NonNull::new(raw).filter(|_| code == 0) else {
            return Err(NativeError::named(failed, code));
        };
        let port = Self {
            raw,
            inbound,
            outbound,
            _provider: Arc::clone(provider),
        };
        let address = Address {
            name: address.name,
            name_bytes: address.name_bytes,
            key: address.key,
            base: address.base,
        };
        Ok((port, address))
    }

    /// The descriptor that wakes on arrivals, if the port was opened to have one. It may only
    /// be slept on after [`may_sleep`](Self::may_sleep) said so.
    pub fn wait_fd(&self) -> Option<RawFd> {
        // SAFETY: the port is open as long as `self` lives.
        let fd = unsafe { ffi::plover_ofi_port_wait_fd(self.raw.as_ptr()) };
        (fd >= 0).then_some(fd)
    }

    /// Whether an arrival from now on will show on the descriptor. If not, there is something
    /// to pick up first.
    pub fn may_sleep(&mut self) -> Result<bool, NativeError> {
        // SAFETY: as above.
        match unsafe { ffi::plover_ofi_port_try_wait(self.raw.as_ptr()) } {
            0 => Ok(true),
            AGAIN => Ok(false),
            code => Err(NativeError::new("fi_trywait", code)),
        }
    }

    /// Names the peer's end. It is not contacted yet.
    pub fn connect(&mut self, peer: &Address) -> Result<(), NativeError> {
        let peer = peer.raw();
        // SAFETY: the port is open, the address lives for the call and is longer than what any
        // provider reads of it; one that is a string ends with a zero.
        match unsafe { ffi::plover_ofi_port_connect(self.raw.as_ptr(), &raw const peer) } {
            0 => Ok(()),
            code => Err(NativeError::new("fi_av_insert", code)),
        }
    }

    /// Writes a few bytes that the provider copies at once. Never reports completion.
    pub fn inject(&mut self, run: Run) -> Result<Posted, NativeError> {
        self.check(run);
        // SAFETY: the port is open and the run lies within the outbound memory.
        let code = unsafe {
            ffi::plover_ofi_inject(
                self.raw.as_ptr(),
                run.offset as u64,
                run.bytes as u64,
                run.offset as u64,
                run.immediate,
            )
        };
        Posted::from_code("fi_inject_writedata", code)
    }

    /// Writes a run that must stay as it is until `sequence`, or with an ordered provider a
    /// later write, is reported by [`completions`](Self::completions). Only a `signalled` one
    /// ever is.
    pub fn write(
        &mut self,
        run: Run,
        sequence: u64,
        signalled: bool,
    ) -> Result<Posted, NativeError> {
        self.check(run);
        // SAFETY: the port is open and the run lies within the outbound memory, which lives as
        // long as the port does; that its bytes stay is a matter of content, not of memory.
        let code = unsafe {
            ffi::plover_ofi_write(
                self.raw.as_ptr(),
                run.offset as u64,
                run.bytes as u64,
                run.offset as u64,
                run.immediate,
                sequence,
                c_int::from(signalled),
            )
        };
        Posted::from_code("fi_writemsg", code)
    }

    fn check(&self, run: Run) {
        let inside = run.offset + run.bytes <= self.outbound.bytes();
        assert!(inside, "{run:?} leaves the memory");
    }

    /// Takes arrivals off their queue, and drives the provider. Returns how many.
    pub fn arrivals(&mut self, events: &mut [Event]) -> Result<usize, NativeError> {
        let count = events.len() as c_int;
        // SAFETY: the port is open and `events` has room for `count`.
        let code =
            unsafe { ffi::plover_ofi_arrivals(self.raw.as_ptr(), events.as_mut_ptr(), count) };
        self.taken("fi_cq_read of arrivals", false, code)
    }

    /// Takes completions of our own writes off their queue. Returns how many.
    pub fn completions(&mut self, events: &mut [Event]) -> Result<usize, NativeError> {
        let count = events.len() as c_int;
        // SAFETY: the port is open and `events` has room for `count`.
        let code =
            unsafe { ffi::plover_ofi_completions(self.raw.as_ptr(), events.as_mut_ptr(), count) };
        self.taken("fi_cq_read of completions", true, code)
    }

    fn taken(
        &mut self,
        call: &'static str,
        transmit: bool,
        code: c_int,
    ) -> Result<usize, NativeError> {
        match code {
            AGAIN => Ok(0),
            0.. => Ok(code as usize),
            ERROR_AVAILABLE => Err(self.queue_error(call, transmit)),
            code => Err(NativeError::new(call, code)),
        }
    }

    fn queue_error(&mut self, call: &'static str, transmit: bool) -> NativeError {
        let mut text: [c_char; 256] = [0; 256];
        // SAFETY: the port is open; `text` is writable for its length, and the shim ends it with
        // a zero inside.
        let (code, text) = unsafe {
            let code = ffi::plover_ofi_queue_error(
                self.raw.as_ptr(),
                c_int::from(transmit),
                text.as_mut_ptr(),
                text.len(),
            );
            (
                code,
                CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned(),
            )
        };
        NativeError {
            call: call.to_owned(),
            code: -code,
            text,
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: opened by the shim, closed once, before the memories (fields drop after this).
        unsafe { ffi::plover_ofi_port_close(self.raw.as_ptr()) }
    }
}
