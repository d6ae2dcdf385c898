//! Network namespaces and veth pairs that go away with their owner.
//!
//! A [`Netns`] is held by a descriptor only, so even a killed process leaves nothing behind; on request it is
//! also given a name that `ip netns` knows. Links are configured by the `ip` command, run inside the namespace:
//! a handful of one-off settings do not justify a netlink library and its async runtime.
//!
//! The calling thread's own namespace is never changed: work inside a namespace runs on a thread of its own,
//! which ends with it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use crate::error::{Error, Result};
use crate::link::{Mode, XdpLink, ifindex};
use crate::program::Program;

/// Where `ip netns` looks for named namespaces.
const NAMED: &str = "/run/netns";

/// A network namespace; destroyed with everything in it when the last handle goes.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
    name: Option<NetnsName>,
}

/// The bind mount that gives a namespace its name; removed on drop.
#[derive(Debug)]
struct NetnsName {
    path: PathBuf,
}

impl Drop for NetnsName {
    fn drop(&mut self) {
        // Nothing can be done about a failure here.
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Moves the calling thread into the namespace that `ip netns` calls `name`.
///
/// Errors: no namespace of that name; a want of privilege.
pub fn enter(name: &str) -> Result<()> {
    let path = std::path::Path::new("/run/netns").join(name);
    let doing = format!("entering the network namespace `{name}`");
    let file =
        std::fs::File::open(&path).map_err(|e| Error::io(format!("{doing} ({})", path.display()), e))?;
    setns(file.as_fd(), CloneFlags::CLONE_NEWNET).map_err(|e| Error::from_errno(doing, e.into()))
}

impl Netns {
    /// A new namespace without a name, its loopback up.
    pub fn new() -> Result<Netns> {
        let made = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNET)
                    .map_err(|e| Error::from_errno("creating a network namespace", e.into()))?;
                File::open("/proc/thread-self/ns/net")
                    .map_err(|e| Error::io("opening the new network namespace", e))
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        let netns = Netns { fd: made.into(), name: None };
        netns.ip(&["link", "set", "lo", "up"])?;
        Ok(netns)
    }

    /// A new namespace that `ip netns exec NAME` finds, until this handle is dropped.
    pub fn named(name: &str) -> Result<Netns> {
        let path = Path::new(NAMED).join(name);
        if name.is_empty() || name.contains('/') {
            return Err(Error::usage(format!("naming a network namespace `{name}`"), "not a file name"));
        }
        let mut netns = Self::new()?;
        std::fs::create_dir_all(NAMED).map_err(|e| Error::io(format!("creating {NAMED}"), e))?;
        File::create_new(&path).map_err(|e| Error::io(format!("creating {}", path.display()), e))?;
        let guard = NetnsName { path };
        let source = netns.proc_path();
        mount(Some(&source), &guard.path, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(|e| {
            Error::from_errno(format!("naming a network namespace {}", guard.path.display()), e.into())
        })?;
        netns.name = Some(guard);
        Ok(netns)
    }

    /// A path to the namespace that other processes can open while this handle lives.
    pub fn proc_path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd()).into()
    }

    /// Runs a function on a thread inside the namespace and waits for it. A panic in it goes on here.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                setns(self.fd.as_fd(), CloneFlags::CLONE_NEWNET)
                    .map_err(|e| Error::from_errno("entering a network namespace", e.into()))?;
                Ok(body())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command that will run inside the namespace.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let fd = self.fd.as_raw_fd();
        let enter = move || {
            // SAFETY: the descriptor number is inherited by the child, where nothing has closed it before exec.
            let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
            setns(fd, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
        };
        // SAFETY: `enter` makes one system call and allocates nothing, as code between fork and exec must.
        unsafe { command.pre_exec(enter) };
        command
    }

    /// Runs `ip` with these arguments inside the namespace; its standard output, or its complaint as error.
    pub fn ip(&self, arguments: &[&str]) -> Result<String> {
        let failed =
            |stderr: String| Error::Command { command: format!("ip {}", arguments.join(" ")), stderr };
        let output = self.command("ip").args(arguments).output().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => failed("there is no `ip`; install the package iproute2".to_owned()),
            _ => failed(e.to_string()),
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(failed(if stderr.is_empty() { output.status.to_string() } else { stderr }))
    }

    /// A veth pair with one end here and the other in `peer` (which may be this same namespace), both up.
    pub fn veth(&self, name: &str, peer: &Netns, peer_name: &str) -> Result<VethPair> {
        let pair = self.veth_down(name, peer, peer_name)?;
        for end in &pair.ends {
            end.netns.ip(&["link", "set", "dev", &end.name, "up"])?;
        }
        Ok(pair)
    }

    fn veth_down(&self, name: &str, peer: &Netns, peer_name: &str) -> Result<VethPair> {
        let place = peer.proc_path();
        let place = place.to_string_lossy();
        self.ip(&["link", "add", "name", name, "type", "veth", "peer", "name", peer_name, "netns", &place])?;
        Ok(VethPair { ends: [VethEnd::new(self, name)?, VethEnd::new(peer, peer_name)?] })
    }

    fn another_handle(&self) -> Result<Netns> {
        let fd = self.fd.try_clone().map_err(|e| Error::io("duplicating a namespace descriptor", e))?;
        Ok(Netns { fd, name: None })
    }
}

/// A pair of virtual interfaces wired to each other; removed on drop.
#[derive(Debug)]
pub struct VethPair {
    ends: [VethEnd; 2],
}

impl VethPair {
    /// The end in the namespace that made the pair.
    pub fn near(&self) -> &VethEnd {
        &self.ends[0]
    }

    /// The end in the peer namespace.
    pub fn far(&self) -> &VethEnd {
        &self.ends[1]
    }
}

impl Drop for VethPair {
    fn drop(&mut self) {
        // Removing one end removes both. Where the namespace dies anyway it does not matter whether this works.
        let near = self.near();
        let _ = near.netns.ip(&["link", "del", "dev", &near.name]);
    }
}

/// One end of a veth pair.
#[derive(Debug)]
pub struct VethEnd {
    netns: Netns,
    name: String,
    ifindex: u32,
}

impl VethEnd {
    fn new(netns: &Netns, name: &str) -> Result<VethEnd> {
        let netns = netns.another_handle()?;
        let ifindex = netns.run(|| ifindex(name))??;
        Ok(VethEnd { netns, name: name.to_owned(), ifindex })
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Index of the interface in its namespace.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// Sets the hardware address.
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<()> {
        let mac = mac.map(|b| format!("{b:02x}")).join(":");
        self.netns.ip(&["link", "set", "dev", &self.name, "address", &mac])?;
        Ok(())
    }

    /// The hardware address.
    pub fn mac(&self) -> Result<[u8; 6]> {
        let doing = || format!("reading the address of interface {}", self.name);
        let text = self.netns.ip(&["-o", "link", "show", "dev", &self.name])?;
        let mac = text.split_once("link/ether ").and_then(|(_, rest)| rest.split(' ').next());
        let bytes: Vec<u8> =
            mac.unwrap_or_default().split(':').filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
        bytes.try_into().map_err(|_| Error::usage(doing(), "`ip` shows no Ethernet address"))
    }

    /// Adds an address with its prefix length, such as `10.0.0.1/24`.
    pub fn add_address(&self, address: &str) -> Result<()> {
        self.netns.ip(&["address", "add", address, "dev", &self.name])?;
        Ok(())
    }

    /// Attaches a program to this end.
    pub fn attach(&self, program: &Program, mode: Mode) -> Result<XdpLink> {
        self.netns.run(|| XdpLink::create(program, self.ifindex, mode))?
    }
}

/// Two spare veth ends in a namespace of their own, to keep programs attached where no packet ever comes: the
/// ends are down, for an interface that is up would send itself neighbour discovery.
///
/// A program that is attached somewhere is known to the kernel's XDP dispatcher, so that test-running it or
/// putting it on another link does not wait for RCU (16 ms and 8 ms otherwise). Two programs can be parked.
#[derive(Debug)]
pub struct ParkedVeth {
    pair: VethPair,
}

impl ParkedVeth {
    /// Makes the namespace and the pair.
    pub fn new() -> Result<ParkedVeth> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let netns = Netns::new()?;
        Ok(ParkedVeth { pair: netns.veth_down(&format!("park{n}a"), &netns, &format!("park{n}b"))? })
    }

    /// Parks a program on spare place 0 or 1 until the link is dropped; [`crate::link::LinkError::Busy`] if the
    /// place is taken.
    pub fn park(&self, place: usize, program: &Program) -> Result<XdpLink> {
        let end = self.pair.ends.get(place);
        end.ok_or_else(|| Error::usage("parking a program", format!("there is no place {place}")))?
            .attach(program, Mode::Native)
    }
}
