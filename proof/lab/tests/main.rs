//! Tests on real replicas, in one program: each file of its own would be linked on its own.
//!
//! `./x test -p plover-lab-proof -- faults::` runs those of one file. One lab is up at a time (`Turn`).

mod agent;
mod backup;
mod capture;
mod change;
mod chaos;
mod clean;
mod clock;
mod crowd;
mod dash;
mod debian;
mod disk;
mod disk_buses;
mod disk_faults;
mod disk_resume;
mod disk_slow;
mod display;
mod down;
mod drill;
mod faults;
mod fleet;
mod fleet_pair;
mod fleet_random;
mod metal;
mod metrics;
mod nics;
mod pgbench;
mod planned;
mod policies;
mod programs;
mod racey;
mod state_dir;
mod storm;
mod tool;
