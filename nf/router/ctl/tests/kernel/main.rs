//! Tests of the router and its control program in a kernel. They need root.

mod command_line;
mod harness;
mod verdicts;
