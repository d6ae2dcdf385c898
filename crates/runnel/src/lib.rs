//! The front end: command line, commands, and the wiring of the engine to XDP programs on a Linux kernel.

pub mod cli;
pub mod commands;
pub mod failure;
pub mod output;
pub mod xdp;
