//! A guest without a kernel. Its ring 0 is `boot.S`; all else runs in 64-bit ring 3, which even a KVM that emulates a
//! guest's ring 0 runs natively (docs/decisions/0058).
//!
//! ```text
//!   wait for an interrupt (the NIC's, or the timer's) ─▶ frames in, TCP, commands, frames out ─▶ write memory ─┐
//!        ▲                                                                                                     │
//!        └───────────── nothing left to do until the next frame, retransmission or page ◀──────────────────────┘
//! ```

#![no_std]
#![no_main]

mod clock;
mod interrupts;
mod memory;
mod net;
mod pci;
mod resp;
mod serial;
mod server;
mod start;
mod store;
mod writer;

use clock::Clock;
use core::fmt::Write;
use core::panic::PanicInfo;
use net::Net;
use serial::Serial;
use server::Server;
use start::Start;
use writer::Writer;

core::arch::global_asm!(include_str!("boot.S"), options(att_syntax));

/// The longest wait. An interrupt that is lost costs this much time, and nothing else.
const LONGEST_WAIT_US: u64 = 1_000_000;

/// Called by `boot.S` in ring 3, once; `start_info` is the address of the machine's description.
#[unsafe(no_mangle)]
extern "C" fn life(start_info: u32) -> ! {
    // SAFETY: the machine's firmware left the description there, and nothing has written to memory since.
    let start = unsafe { Start::read(start_info) };
    let clock = Clock::new(start.tsc_khz());
    interrupts::enable();
    let mut net = Net::open(&start, &clock).unwrap_or_else(|why| panic!("{why}"));
    let mut writer = Writer::new(start.free_memory());
    if let Some((rate, pages, pattern)) = start.writer() {
        writer.set(rate, pages, pattern);
    }
    let mut server = Server::new(&mut net.sockets);
    let _ = writeln!(
        Serial,
        "plover-guest: ready, at {}, {} MiB to write to",
        net.address(),
        writer.memory_pages() >> 8
    );
    loop {
        net.device.acknowledge();
        let delay = loop {
            // Commands are executed in the order of their frames, however many frames wait. So two guests with the same
            // frames do the same.
            while let Some(changed) = net.take(&clock) {
                if changed {
                    server.serve(&mut net.sockets, &mut writer, &clock);
                }
            }
            let moved = net.send(&clock);
            let served = server.serve(&mut net.sockets, &mut writer, &clock);
            let next_page = writer.write_due(clock.now_us());
            if !moved && !served {
                break next_page.min(net.delay_us(&clock)).min(LONGEST_WAIT_US);
            }
        };
        if delay > 0 {
            interrupts::wait_for(delay);
        }
    }
}

/// Says why, and stands still.
#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    let _ = writeln!(Serial, "plover-guest: failed: {info}");
    loop {
        interrupts::wait_for(LONGEST_WAIT_US);
    }
}
