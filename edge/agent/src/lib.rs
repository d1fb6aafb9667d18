//! The LD_PRELOAD library inside QEMU, built from C and carried as bytes.
