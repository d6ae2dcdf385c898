//! Inputs for tests and benchmarks: routes, packets, traces, and packet files.
//!
//! | module | gives |
//! |---|---|
//! | [`routes`] | prefixes distributed as on a backbone router |
//! | [`packet`] | Ethernet/VLAN/IPv4/UDP frames, sound or broken in a chosen way |
//! | [`trace`] | packets over a routes table, with the locality of published experiments |
//! | [`router`] | packets that reach every branch of the router (`nf/router`) |
//! | [`pcap`] | packet files |
//! | [`programs`] | IR programs that are well-formed, terminate and are safe, with their inputs |
//!
//! Everything random is drawn from a seed; the same seed gives the same result with the same version of the
//! `rand` crate, which does not promise it across versions. Nothing here talks to a kernel, judges a result,
//! or is fast enough to generate packets while something is measured.

pub mod packet;
pub mod pcap;
pub mod programs;
pub mod router;
pub mod routes;
pub mod trace;
