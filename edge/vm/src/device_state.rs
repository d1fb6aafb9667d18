//! Device and CPU state on its way in and out of QEMU: a memfd.
//!
//! QEMU's `xen-save-devices-state` and `xen-load-devices-state` take a file name. QEMU inherits
//! this memory file and opens it as `/proc/self/fd/N`, truncated for each save. So no file in any
//! directory must be protected or cleaned up.

use crate::VmError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Far more than any machine here saves (20 to 80 KiB). A bound is needed because QEMU, which a guest
/// may have taken over, decides the size.
const STATE_BYTES_MAX: u64 = 64 << 20;

/// The file that carries one state at a time.
pub(crate) struct StateFile {
    file: File,
}

impl StateFile {
    pub(crate) fn new() -> Result<Self, VmError> {
        let fd: OwnedFd = memfd_create("plover-state", MemfdFlags::CLOEXEC)
            .map_err(VmError::io("creating memory for device state (memfd)"))?;
        Ok(Self { file: fd.into() })
    }

    /// To pass to QEMU.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Puts a state there for QEMU to load.
    pub(crate) fn write(&self, state: &[u8]) -> std::io::Result<()> {
        ftruncate(&self.file, 0)?;
        self.file.write_all_at(state, 0)
    }

    /// The state that QEMU saved.
    pub(crate) fn read(&self) -> std::io::Result<Vec<u8>> {
        let size = fstat(&self.file)?.st_size as u64;
        if size == 0 || size > STATE_BYTES_MAX {
            return Err(std::io::Error::other(format!(
                "a device state of {size} bytes"
            )));
        }
        let mut state = vec![0; size as usize];
        self.file.read_exact_at(&mut state, 0)?;
        Ok(state)
    }
}

/// A section of a saved state begins with this byte, its number (32 bits) and its name, one byte
/// of length first.
const SECTION: u8 = 0x04;
/// It ends with this byte and its number again.
const FOOTER: u8 = 0x7e;
/// Bytes of the marker and the number, at either end.
const HEAD_BYTES: usize = 5;
/// The section of the serial port, with its instance and the version known here.
const SERIAL: &[u8] = b"\x06serial\0\0\0\0\0\0\0\x03";
/// Its registers, which come first.
const SERIAL_REGISTERS: usize = 11;
/// The most bytes that it has with all its subsections.
const SERIAL_BYTES_MAX: usize = 512;
/// A subsection begins with this byte, its name (one byte of length first) and its version.
const SUBSECTION: u8 = 0x05;
/// The subsections that QEMU leaves out when they are empty, and their content when empty: a queue of 16
/// bytes with head and length, an interrupt that is not pending, a timer that is not set.
const SERIAL_WHEN_EMPTY: [(&[u8], &[u8]); 3] = [
    (b"serial/recv_fifo", &[0; 24]),
    (b"serial/timeout_ipending", &[0; 4]),
    (b"serial/fifo_timeout_timer", &[0xff; 8]),
];

/// Adds the empty queue of the serial port to `state`, if `state` leaves it out. Also returns the place
/// of the serial port's section. A state without such a section, or with one of another form, is
/// returned unchanged.
///
/// A load leaves everything unchanged that the state does not mention. That is right for a machine that
/// has just been made. On a machine that has run, unread bytes of the replaced guest would stay in the
/// UART's queue. The guest would read them before what is typed next. If they fill the queue, the UART
/// takes nothing any more, for ever, because the loaded registers say that there is nothing to read.
pub(crate) fn with_serial_queue(state: Vec<u8>) -> (Vec<u8>, Range<u32>) {
    let Some(section) = serial(&state) else {
        return (state, 0..0);
    };
    let mut missing = Vec::new();
    for (name, data) in SERIAL_WHEN_EMPTY {
        if find(&state[section.clone()], 0, name).is_none() {
            missing.extend([SUBSECTION, name.len() as u8]);
            missing.extend_from_slice(name);
            missing.extend_from_slice(&1u32.to_be_bytes());
            missing.extend_from_slice(data);
        }
    }
    // QEMU takes subsections in any order.
    let (before, after) = state.split_at(section.start + SERIAL_REGISTERS);
    let begin = section.start - SERIAL.len() - HEAD_BYTES;
    let end = section.end + HEAD_BYTES + missing.len();
    let place = |at: usize| u32::try_from(at).unwrap_or(0);
    ([before, &missing, after].concat(), place(begin)..place(end))
}

/// The section of a processor: its name, and after its instance (32 bits) the version known here.
const CPU: &[u8] = b"\x03cpu";
const CPU_VERSION: [u8; 4] = [0, 0, 0, 12];
/// Name, instance and version.
const CPU_NAME_BYTES: usize = CPU.len() + 8;
/// The fields of that version. Subsections follow.
const CPU_BYTES: usize = 1817;
/// The most bytes of subsections that follow, and how many places are looked at for the next processor.
const CPU_SUBSECTIONS_MAX: usize = 64 << 10;
const CPU_LOOKS_MAX: usize = 256;
/// The subsections that QEMU leaves out when all their bytes are zero and that change while a guest runs, and how many
/// bytes they have.
const CPU_WHEN_ZERO: [(&[u8], usize); 8] = [
    // Pending, injected, has a payload, payload.
    (b"cpu/exception_info", 11),
    (b"cpu/fpop_ip_dp", 18),
    (b"cpu/msr_tscdeadline", 8),
    (b"cpu/avx512", 1600),
    (b"cpu/xss", 8),
    (b"cpu/pkru", 4),
    (b"cpu/spec_ctrl", 8),
    (b"cpu/virt_ssbd", 8),
];

/// Adds to the section of each processor the subsections of [`CPU_WHEN_ZERO`] that it leaves out. Sections of another form
/// are unchanged.
///
/// The reason is that of [`with_serial_queue`]. The exception is the one that was seen: the fields have the number of an
/// exception on its way, or none. From a number QEMU concludes that there is an exception, and never from none that there
/// is none. So after a state whose guest was stopped in an exception, QEMU gave KVM an exception without a number at every
/// further load. KVM refused it, QEMU did not say so, and the guest went on with the exceptions and interrupts of the
/// replaced one, and awake where the loaded one was halted.
pub(crate) fn with_zeros_of_cpus(state: Vec<u8>) -> Vec<u8> {
    let (mut said, mut copied) = (Vec::with_capacity(state.len()), 0);
    while let Some((fields_end, end)) = cpu(&state, copied) {
        let subsections = &state[fields_end..end];
        said.extend_from_slice(&state[copied..fields_end]);
        for (name, bytes) in CPU_WHEN_ZERO {
            let head = [
                &[SUBSECTION, name.len() as u8][..],
                name,
                &1u32.to_be_bytes(),
            ]
            .concat();
            if find(subsections, 0, &head).is_none() {
                said.extend_from_slice(&head);
                said.resize(said.len() + bytes, 0);
            }
        }
        said.extend_from_slice(subsections);
        copied = end;
    }
    said.extend_from_slice(&state[copied..]);
    said
}

/// The next processor's section from `from` on: the ends of its fields and of its subsections.
///
/// Bytes of the guest's may look like the beginning of one: there are no more than a few before the processors' own sections.
fn cpu(state: &[u8], from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    for _ in 0..CPU_LOOKS_MAX {
        let name = find(state, at, CPU)?;
        at = name + CPU.len();
        let fields = name + CPU_NAME_BYTES;
        let fields_end = fields + CPU_BYTES;
        let version = state.get(fields - CPU_VERSION.len()..fields);
        let head = name.checked_sub(HEAD_BYTES).filter(|head| *head >= from);
        let head = head.filter(|head| state[*head] == SECTION);
        let Some(head) = head.filter(|_| version == Some(&CPU_VERSION)) else {
            continue;
        };
        let footer = [&[FOOTER], &state[head + 1..name]].concat();
        let last = state.len().min(fields_end + CPU_SUBSECTIONS_MAX);
        let Some(end) = find(&state[..last], fields_end, &footer) else {
            continue;
        };
        if end == fields_end || state[fields_end] == SUBSECTION {
            return Some((fields_end, end));
        }
    }
    None
}

/// The place of the serial port's registers and subsections.
fn serial(state: &[u8]) -> Option<Range<usize>> {
    let name = find(state, 0, SERIAL)?;
    let number = name.checked_sub(4)?..name;
    if state.get(number.start.checked_sub(1)?) != Some(&SECTION) {
        return None;
    }
    let footer = [&[FOOTER], &state[number]].concat();
    let data = name + SERIAL.len();
    let end = find(state, data + SERIAL_REGISTERS, &footer)?;
    (end - data <= SERIAL_BYTES_MAX).then_some(data..end)
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes
        .get(from..)?
        .windows(what.len())
        .position(|window| window == what)
        .map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(number: u8, name: &[u8], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![SECTION, 0, 0, 0, number, name.len() as u8];
        bytes.extend(name);
        bytes.extend(data);
        bytes.extend([FOOTER, 0, 0, 0, number]);
        bytes
    }

    /// A serial port's section with these subsections.
    fn serial_section(subsections: &[u8]) -> Vec<u8> {
        // From the instance on; the name is the section's.
        let data = [&SERIAL[7..], b"\0\x0cregisters", subsections].concat();
        section(7, b"serial", &data)
    }

    #[test]
    fn an_empty_queue_is_said_and_a_full_one_is_kept() {
        let around = section(1, b"timer", b"t");
        let empty = [&around[..], &serial_section(b""), &around].concat();
        let (said, place) = with_serial_queue(empty.clone());
        let added: usize = SERIAL_WHEN_EMPTY
            .map(|(n, d)| 6 + n.len() + d.len())
            .iter()
            .sum();
        assert_eq!(said.len(), empty.len() + added);
        assert_eq!(
            with_serial_queue(said.clone()),
            (said.clone(), place.clone()),
            "nothing is said twice"
        );

        let queue = [&b"\x05\x10serial/recv_fifo\0\0\0\x01"[..], &[7; 24]].concat();
        let (full, _) = with_serial_queue([&around[..], &serial_section(&queue)].concat());
        assert!(find(&full, 0, &queue).is_some());
        assert_eq!(
            full.windows(16)
                .filter(|w| *w == b"serial/recv_fifo")
                .count(),
            1
        );
        let none = (around.clone(), 0..0);
        assert_eq!(with_serial_queue(around.clone()), none, "no serial port");
        let (begin, end) = (place.start as usize, place.end as usize);
        assert_eq!([&said[..begin], &said[end..]], [&around[..], &around]);
    }

    /// A processor's section, with these subsections.
    fn cpu_section(number: u8, version: u8, subsections: &[u8]) -> Vec<u8> {
        let number = [0, 0, 0, number];
        let head = [
            &[SECTION][..],
            &number,
            CPU,
            &[0, 0, 0, 1, 0, 0, 0, version],
        ]
        .concat();
        [&head[..], &[9; CPU_BYTES], subsections, &[FOOTER], &number].concat()
    }

    #[test]
    fn each_processor_says_what_is_zero() {
        let subsection = |name: &[u8], data: &[u8]| {
            [
                &[SUBSECTION, name.len() as u8][..],
                name,
                &[0, 0, 0, 1],
                data,
            ]
            .concat()
        };
        let zeros = |but: &[u8]| {
            let left_out = CPU_WHEN_ZERO.iter().filter(|(name, _)| *name != but);
            let each = left_out.map(|(name, bytes)| subsection(name, &vec![0; *bytes]));
            each.collect::<Vec<_>>().concat()
        };
        let state = |subsections: [&[u8]; 3]| {
            let mut state = b"cpu \x04\x03cpu".to_vec();
            for (number, subsections) in (3..).zip(subsections) {
                state.extend(cpu_section(number, CPU_VERSION[3], subsections));
                state.extend(b"\x04\0\0\0\x09\x0acpu_common");
            }
            state
        };
        let keys = subsection(b"cpu/pkru", &[1; 4]);
        let other = subsection(b"cpu/new", &[1; 4]);
        let said = with_zeros_of_cpus(state([&[], &keys, &other]));
        let expected = [
            zeros(b""),
            [zeros(b"cpu/pkru"), keys].concat(),
            [zeros(b""), other].concat(),
        ];
        assert_eq!(said, state(expected.each_ref().map(Vec::as_slice)));
        assert_eq!(with_zeros_of_cpus(said.clone()), said, "nothing twice");
        let unknown = cpu_section(3, 13, &[]);
        assert_eq!(with_zeros_of_cpus(unknown.clone()), unknown);
    }

    proptest::proptest! {
        /// The other side's state is bytes from outside.
        #[test]
        fn noise_never_panics(
            a: Vec<u8>,
            b: Vec<u8>,
            cut in 0usize..40,
        ) {
            let mut serial = [&a[..], &serial_section(&b)].concat();
            serial.truncate(serial.len().saturating_sub(cut));
            let _ = with_serial_queue(serial);
            let _ = with_serial_queue([SERIAL, &b].concat());
            let mut cpus = [&a[..], &cpu_section(3, CPU_VERSION[3], &b)].concat();
            cpus.truncate(cpus.len().saturating_sub(cut));
            let _ = with_zeros_of_cpus(cpus);
        }
    }

    #[test]
    fn a_shorter_state_leaves_nothing_of_a_longer_one() {
        let file = StateFile::new().unwrap();
        assert!(file.read().is_err(), "nothing saved is no state");
        file.write(b"long state").unwrap();
        file.write(b"short").unwrap();
        assert_eq!(file.read().unwrap(), b"short");
    }
}
