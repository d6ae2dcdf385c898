//! XDP programs as the engine's target: building versions, running them on a hook, checking and measuring them.

pub mod candidate;
pub mod check;
pub mod faults;
pub mod maps;
pub mod measure;
pub mod pin_helpers;
mod pins;
pub mod reach;
pub mod reference;
pub mod session;
pub mod setup;
pub mod snapshot;
pub mod trial;
pub mod version;
