//! For the tests of this program.

use std::path::Path;

/// The configuration of replica 0 of a guest, with its disk and its state in `dir`.
pub fn configuration(name: &str, dir: &Path, run_dir: &Path) -> String {
    let (path, run_dir) = (dir.display(), run_dir.display());
    format!(
        "[group]\nname = \"{name}\"\nme = 0\nplaintext = true\nreplica = [\n\
         {{ id = 0, address = \"192.0.2.10:7700\" }},\n\
         {{ id = 1, address = \"192.0.2.11:7700\" }},\n\
         {{ id = 2, address = \"192.0.2.12:7700\" }},\n]\n\
         [guest]\nmachine = \"q35\"\nmac = \"52:54:00:00:00:01\"\n\
         [[disk]]\npath = \"{path}/shop.raw\"\nsize_mib = 64\n\
         [net]\ntap = \"guest0\"\n\
         [paths]\nstate_dir = \"{path}/state\"\nrun_dir = \"{run_dir}\"\n"
    )
}
