//! Contents of maps from a file, for the commands that take `--maps`.

use std::path::Path;

use runnel_bpf::maps_json::MapContents;

use crate::failure::{Failure, Result};

/// Reads the file. Whether the contents fit the maps of a program is not asked here.
///
/// # Errors
/// The file cannot be read, or is not of the form.
pub fn read(path: &Path) -> Result<MapContents> {
    let bytes = std::fs::read(path).map_err(|e| unusable(path).because(e))?;
    MapContents::parse(&bytes).map_err(|e| unusable(path).because(e))
}

/// What is said of a file whose contents cannot be used.
pub fn unusable(path: &Path) -> Failure {
    Failure::new(format!("cannot use the contents of the maps in `{}`", path.display())).advise(
        "give what `bpftool -j map dump` prints, as one array under each map's name: {\"routes\": […], …}",
    )
}
