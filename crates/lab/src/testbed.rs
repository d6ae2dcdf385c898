//! Tester and router: two network namespaces and the wire between them.
//!
//! The device under test attaches to the router's end. What it hands to the router's stack is counted and goes no
//! further; there is no IP configuration at all. Everything goes away with the [`Testbed`], or with the process.

use std::path::Path;
use std::process::Command;

use runnel_kernel::link::{Mode, XdpLink};
use runnel_kernel::netns::{Netns, VethPair};
use runnel_kernel::program::Program;

use crate::error::Result;

/// The tester's interface.
pub const TESTER_DEV: &str = "t0";
/// The router's interface: the device under test.
pub const ROUTER_DEV: &str = "r0";
/// Ethernet address of the tester's interface.
pub const TESTER_MAC: [u8; 6] = [0x02, 0xee, 0, 0, 0, 0x01];
/// Ethernet address of the router's interface.
pub const ROUTER_MAC: [u8; 6] = [0x02, 0xee, 0, 0, 0, 0x02];

/// Two namespaces and a veth pair between them.
#[derive(Debug)]
pub struct Testbed {
    // The pair goes first: it needs the namespaces to be removed.
    pair: VethPair,
    tester: Netns,
    router: Netns,
}

impl Testbed {
    /// Makes them. Needs root.
    pub fn new() -> Result<Testbed> {
        let (tester, router) = (Netns::new()?, Netns::new()?);
        for netns in [&tester, &router] {
            // Router solicitations and the like would mix with the traffic.
            netns.run(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")).ok();
        }
        let pair = tester.veth(TESTER_DEV, &router, ROUTER_DEV)?;
        pair.near().set_mac(TESTER_MAC)?;
        pair.far().set_mac(ROUTER_MAC)?;
        Ok(Testbed { pair, tester, router })
    }

    /// The tester's namespace.
    pub fn tester(&self) -> &Netns {
        &self.tester
    }

    /// The router's namespace.
    pub fn router(&self) -> &Netns {
        &self.router
    }

    /// Index of the tester's interface, in the tester's namespace.
    pub fn tester_ifindex(&self) -> u32 {
        self.pair.near().ifindex()
    }

    /// Index of the router's interface, in the router's namespace.
    pub fn router_ifindex(&self) -> u32 {
        self.pair.far().ifindex()
    }

    /// Attaches a program to the tester's end.
    pub fn attach_tester(&self, program: &Program) -> Result<XdpLink> {
        Ok(self.pair.near().attach(program, Mode::Native)?)
    }

    /// Attaches a program to the router's end.
    pub fn attach_router(&self, program: &Program) -> Result<XdpLink> {
        Ok(self.pair.far().attach(program, Mode::Native)?)
    }

    /// A command that will run in the router's namespace.
    pub fn router_command(&self, program: &Path) -> Command {
        self.router.command(&program.to_string_lossy())
    }
}
