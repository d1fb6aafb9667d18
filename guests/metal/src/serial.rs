//! The first serial port, write only.

use core::arch::asm;
use core::fmt;

/// The port's data register.
const DATA: u16 = 0x3f8;

/// The console.
pub struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // SAFETY: writing to the serial port touches no memory. QEMU's port takes a byte at any time.
            unsafe {
                asm!("out dx, al", in("dx") DATA, in("al") byte, options(nomem, nostack, preserves_flags))
            };
        }
        Ok(())
    }
}
