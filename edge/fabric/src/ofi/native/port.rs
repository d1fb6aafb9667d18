//! One end of one lane of one session: an endpoint, its queues, its memory.

use super::{
    AGAIN, Address, ERROR_AVAILABLE, Event, NO_CALL, NativeError, Provider, QUEUE_ENTRIES, ffi,
};
use crate::mapping::Mapping;
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

/// Whether the provider took a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
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
pub struct Run {
    /// Offset in the outbound memory and in the peer's inbound memory: they have one layout.
    pub offset: usize,
    pub bytes: usize,
    /// Shown in the peer's queue of arrivals.
    pub immediate: u32,
}

/// One end of one lane of one session.
#[derive(Debug)]
pub struct Port {
    raw: NonNull<ffi::Port>,
    /// The memory that the peer writes.
    pub inbound: Mapping,
    /// The memory that our writes are taken from.
    pub outbound: Mapping,
    // After the port: it is opened on the provider.
    provider: Arc<Provider>,
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
        let memory = || {
            Mapping::anonymous(bytes)
                .map_err(|error| NativeError::of_system("mmap of a ring", &error))
        };
        let (inbound, outbound) = (memory()?, memory()?);
        let mut raw = ptr::null_mut();
        let mut failed = ptr::null();
        let mut address = Address::NONE;
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
            provider: Arc::clone(provider),
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
        // SAFETY: the port is open, the address lives for the call and is longer than what any
        // provider reads of it; one that is a string ends with a zero.
        match unsafe { ffi::plover_ofi_port_connect(self.raw.as_ptr(), peer) } {
            0 => Ok(()),
            code => Err(NativeError::new("fi_av_insert", code)),
        }
    }

    /// Writes a few bytes that the provider copies at once. Never reports completion.
    pub fn inject(&mut self, run: Run) -> Result<Posted, NativeError> {
        self.check(run);
        if run.bytes as u64 > self.provider.traits.inject_bytes {
            return Ok(Posted::NoCall);
        }
        // SAFETY: the port is open and the run lies within the outbound memory.
        let code = unsafe {
            ffi::plover_ofi_inject(
                self.raw.as_ptr(),
                run.offset as u64,
                run.bytes as u64,
                run.immediate,
            )
        };
        Posted::from_code("fi_inject_writedata", code)
    }

    /// Writes a run that must stay as it is until `sequence` is reported by
    /// [`completions`](Self::completions). Only a `signalled` one ever is.
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
