//! The functions of `native/ofi_shim.h`, whose words on them hold. The two files change together.

use super::NAME_BYTES;
use std::ffi::{c_char, c_int};
use std::fmt;

#[repr(C)]
pub struct Provider {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct Port {
    _opaque: [u8; 0],
}

/// What a provider is like.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// As it names itself; ends with a zero.
    pub name: [u8; 64],
    /// Largest write that may be injected: its buffer is free at once. 0 if none may.
    pub inject_bytes: u64,
    /// Largest write at all.
    pub write_bytes: u64,
    /// Width of a memory key.
    pub key_bytes: u64,
    /// Width of the immediate data that a write may carry.
    pub immediate_bytes: u32,
}

impl Traits {
    pub const NONE: Self = Self {
        name: [0; 64],
        inject_bytes: 0,
        write_bytes: 0,
        key_bytes: 0,
        immediate_bytes: 0,
    };
}

/// One arrival, or one completed write of our own.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Event {
    /// Of a completed write: its number.
    pub sequence: u64,
    /// Of an arrival.
    pub immediate: u32,
    /// 1 if a peer's write with immediate data arrived.
    pub arrived: u32,
}

/// What a peer needs to write here: where the endpoint is and the key of its memory.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// As the provider encodes it; unused bytes are zero, the last one always.
    pub name: [u8; NAME_BYTES],
    pub name_bytes: u64,
    pub key: u64,
    /// Remote address of the memory's first byte.
    pub base: u64,
}

impl Address {
    pub const NONE: Self = Self {
        name: [0; NAME_BYTES],
        name_bytes: 0,
        key: 0,
        base: 0,
    };
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({} bytes)", self.name_bytes)
    }
}

unsafe extern "C" {
    pub fn plover_ofi_version_built() -> u32;
    pub fn plover_ofi_version_running() -> u32;
    pub fn plover_ofi_error_text(error: c_int) -> *const c_char;
    pub fn plover_ofi_provider_open(
        provider: *const c_char,
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
    pub fn plover_ofi_inject(port: *mut Port, at: u64, bytes: u64, immediate: u32) -> c_int;
    pub fn plover_ofi_write(
        port: *mut Port,
        at: u64,
        bytes: u64,
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
