//! XDP programs as the engine's target: building versions, running them on a hook, checking and measuring them.

pub mod candidate;
