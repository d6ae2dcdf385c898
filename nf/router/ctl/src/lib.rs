//! The tables of the XDP router (`router.bpf.c`), without a kernel: what they hold, how the files that
//! describe them are read, what changes them over time, and the bytes that the maps are given.
//!
//! It relies on `router.h` for the layout of keys and values. It deliberately opens no map and makes no
//! system call beyond reading files: whoever has the entries of [`Tables::entries`] can put them into maps
//! in the way that suits, and benchmarks fill maps without the `router-ctl` binary.

pub mod churn;
pub mod layout;
pub mod parse;
pub mod tables;

pub use layout::{Mac, MapData, Neighbour, Port, RouteKey, RouteValue, TxCounter};
pub use parse::ParseError;
pub use tables::{MapEntries, Tables, TablesError};
