//! A test bench for XDP programs that run live: real packets, real updates by another process, and a judge.
//!
//! | module | gives |
//! |---|---|
//! | [`testbed`] | two network namespaces with a wire between them |
//! | [`traffic`] | packets without pause, each with a record of what became of it |
//! | [`scene`], [`plan`] | tables, destinations, patterns of traffic; changes of the tables |
//! | [`updater`], [`update`] | the process that makes the changes, and how it reports them |
//! | [`checker`], [`history`] | what the original may have shown for a packet, given the updates |
//! | [`observer`] | traffic and checker together |
//! | [`device`], [`child`] | `runnel run` as a child process |
//! | [`consistency`] | the experiment that puts all of these together |
//!
//! Packets run on one CPU and everything else on another, so that updates and packets really meet. The bench
//! uses `runnel` as its users do, through its command line, events and pins, and depends on nothing of its
//! insides. It is for one program, the router of `nf/router`; another needs a
//! checker of its own.

pub mod checker;
pub mod child;
pub mod consistency;
pub mod device;
pub mod error;
pub mod history;
pub mod observer;
pub mod plan;
pub mod scene;
pub mod sys;
pub mod testbed;
pub mod traffic;
pub mod update;
pub mod updater;

pub use error::{LabError, Result};
