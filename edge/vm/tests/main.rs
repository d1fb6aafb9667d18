//! Tests on real QEMU, in one program: each file of its own would be linked on its own.

mod common;

mod agent;
mod boot_sector;
mod console;
mod devices;
mod disks;
mod exceptions;
mod hypervisor;
mod linux_sync;
mod load;
mod releases;
mod systems;
mod uefi;
