//! The front end: command line, commands, and the wiring of the engine to XDP programs on a Linux kernel.

pub mod xdp;
