//! A test bench for XDP programs that run live.
#![cfg_attr(test, allow(unused))]
pub mod error;
pub mod sys;
pub mod testbed;
pub mod traffic;
