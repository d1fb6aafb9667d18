//! The functions of `native/ofi_shim.h`, whose words on them hold. The two files change together.

use super::NAME_BYTES;
use std::ffi::{c_char, c_int};

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
