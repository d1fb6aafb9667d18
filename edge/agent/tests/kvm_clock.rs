//! The clock that KVM keeps for a guest, across a pause. Where `/dev/kvm` does not open, nothing is tested.

use std::ffi::{CString, c_int, c_ulong, c_void};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

const KVM_CREATE_VM: c_ulong = 0xae01;
const KVM_SET_CLOCK: c_ulong = 0x4030_ae7b;
// As QEMU passes it: an int, so that the sign fills the upper half.
const KVM_GET_CLOCK: c_ulong = 0xffff_ffff_8030_ae7c;

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// `struct kvm_clock_data`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ClockData {
    clock: u64,
    flags: u32,
    rest: [u32; 9],
}

/// The agent's `ioctl`, which QEMU calls instead of the C library's.
fn agents_ioctl() -> Ioctl {
    let mut so = tempfile::NamedTempFile::new().unwrap();
    so.write_all(plover_agent::AGENT_SO).unwrap();
    let path = CString::new(so.path().to_str().unwrap()).unwrap();
    // SAFETY: both strings end with a zero byte; without its environment variable the agent does nothing
    // when it is loaded, and it stays loaded. Its `ioctl` has this type.
    unsafe {
        let agent = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!agent.is_null(), "the agent is loaded");
        let ioctl = libc::dlsym(agent, c"ioctl".as_ptr());
        assert!(!ioctl.is_null(), "the agent has an ioctl");
        std::mem::transmute::<*mut c_void, Ioctl>(ioctl)
    }
}

fn host_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// What a stop and a start of QEMU do, 200 ms apart. Its clock has lost nothing of them.
#[test]
fn kvms_clock_goes_on_in_a_pause() {
    let Ok(kvm) = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
    else {
        return eprintln!("no /dev/kvm: not tested");
    };
    // SAFETY: it takes the machine's type by value, and returns a descriptor.
    let vm = unsafe { libc::ioctl(kvm.as_raw_fd(), KVM_CREATE_VM, 0) };
    assert!(vm >= 0, "KVM makes no machine");
    // SAFETY: nobody else owns it.
    let vm = unsafe { OwnedFd::from_raw_fd(vm) };
    let ioctl = agents_ioctl();
    let call = |request, data: &mut ClockData| {
        // SAFETY: both requests take this structure.
        let result = unsafe { ioctl(vm.as_raw_fd(), request, std::ptr::from_mut(data).cast()) };
        assert_eq!(result, 0);
    };
    // The host's clock less the guest's. The smallest of many: this thread may lose its CPU in between.
    let behind = || {
        let once = |_| {
            let mut data = ClockData::default();
            call(KVM_GET_CLOCK, &mut data);
            host_ns() as i64 - data.clock as i64
        };
        (0..100).map(once).min().unwrap()
    };
    let before = behind();

    let mut data = ClockData::default();
    call(KVM_GET_CLOCK, &mut data);
    std::thread::sleep(Duration::from_millis(200));
    data.flags = 0;
    call(KVM_SET_CLOCK, &mut data);

    let lost = behind() - before;
    assert!(lost < 100_000_000, "the guest's clock has lost {lost} ns");
}
