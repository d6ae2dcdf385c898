//! Attaching XDP programs by `bpf_link`: create, replace atomically, pin, find again, detach.
//!
//! An unpinned link lets go when its last descriptor does: a killed owner leaves the hook empty. So what must
//! outlive its owner is pinned. Replacing takes 8 ms (median) because the kernel's XDP dispatcher waits for
//! RCU, and 0.5 µs when both programs are already attached somewhere ([`crate::netns::ParkedVeth`]).
//!
//! Not here: netlink attachment (replaceable by netlink only), TC, and what to attach when.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use libbpf_sys as sys;
use thiserror::Error;

use crate::error::{Errno, Error, Result, check};
use crate::program::Program;
use crate::sys::{expect_kind, ids, owned};

/// Where in the receive path an XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In the driver, before any socket buffer.
    Native,
    /// In the network stack, on any interface, slower.
    Generic,
}

impl Mode {
    fn flags(self) -> u32 {
        // XDP_FLAGS_DRV_MODE and XDP_FLAGS_SKB_MODE of linux/if_link.h.
        match self {
            Mode::Native => 1 << 2,
            Mode::Generic => 1 << 1,
        }
    }
}

/// Why a program could not be attached, replaced or detached.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No interface of that name or index in this network namespace.
    #[error("no network interface {interface} here; `ip link` lists those there are")]
    NoSuchInterface {
        /// Name or index.
        interface: String,
    },
    /// The driver has no XDP.
    #[error("interface {ifindex} has no native XDP; use `--mode generic`")]
    NoNativeXdp {
        /// Index of the interface.
        ifindex: u32,
    },
    /// Something else is attached there.
    #[error(
        "interface {ifindex} has an XDP program already, attached by someone else or in another mode; \
         `ip link show` tells which"
    )]
    Busy {
        /// Index of the interface.
        ifindex: u32,
    },
    /// The link does not run the program that was expected.
    #[error("link {link} runs another program than the expected one; somebody else replaced it")]
    NotTheExpectedProgram {
        /// Id of the link.
        link: u32,
    },
    /// The interface is gone or the link was detached.
    #[error("link {link} is attached to nothing any more")]
    Detached {
        /// Id of the link.
        link: u32,
    },
    /// What was opened is a link of another kind.
    #[error("link {link} is no XDP link (kind {kind})")]
    NotXdp {
        /// Id of the link.
        link: u32,
        /// `enum bpf_link_type`.
        kind: u32,
    },
    /// The kernel failed the command with an errno that needs no translation.
    #[error("{doing}: {errno}")]
    Kernel {
        /// What was being done.
        doing: String,
        /// The kernel's answer.
        errno: Errno,
    },
}

impl LinkError {
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            LinkError::Kernel { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

/// Index of the interface of this name in the calling thread's network namespace.
pub fn ifindex(name: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(name)
        .map_err(|_| LinkError::NoSuchInterface { interface: format!("`{name}`") }.into())
}

/// The program on the XDP hook of an interface in the calling thread's network namespace, by its id and mode; nothing if
/// there is none.
pub fn attached(ifindex: u32) -> Result<Option<(u32, Mode)>> {
    let mut found =
        sys::bpf_xdp_query_opts { sz: size_of::<sys::bpf_xdp_query_opts>() as _, ..Default::default() };
    // SAFETY: `found` says how large it is, and libbpf fills it.
    check(unsafe { sys::bpf_xdp_query(ifindex as i32, 0, &mut found) })
        .map_err(|e| failed(format!("asking what is attached to interface {ifindex}"), e))?;
    Ok(match u32::from(found.attach_mode) {
        sys::XDP_ATTACHED_DRV => Some((found.drv_prog_id, Mode::Native)),
        sys::XDP_ATTACHED_SKB => Some((found.skb_prog_id, Mode::Generic)),
        _ => None,
    })
}

fn exists(ifindex: u32) -> bool {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the function requires.
    !unsafe { libc::if_indextoname(ifindex, name.as_mut_ptr()) }.is_null()
}

/// What the kernel says of an XDP link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Id of the link.
    pub id: u32,
    /// Id of the program that it runs.
    pub program_id: u32,
    /// Index of the interface; 0 once the interface is gone or the link detached.
    pub ifindex: u32,
}

/// An XDP program's attachment to an interface. Dropping the last handle of an unpinned link detaches it.
#[derive(Debug)]
pub struct XdpLink {
    fd: OwnedFd,
    id: u32,
}

impl XdpLink {
    /// Attaches a program to an interface of the calling thread's network namespace.
    pub fn create(program: &Program, ifindex: u32, mode: Mode) -> Result<XdpLink> {
        let opts = sys::bpf_link_create_opts {
            sz: size_of::<sys::bpf_link_create_opts>() as _,
            flags: mode.flags(),
            ..Default::default()
        };
        // SAFETY: `opts` lives during the call; the rest are plain numbers.
        let ret =
            unsafe { sys::bpf_link_create(program.as_fd().as_raw_fd(), ifindex as i32, sys::BPF_XDP, &opts) };
        let fd = owned(ret).map_err(|e| match e.0 {
            // `bpf_xdp_link_attach` in net/core/dev.c answers EINVAL for an interface that is not there.
            libc::EINVAL | libc::ENODEV if !exists(ifindex) => {
                LinkError::NoSuchInterface { interface: format!("number {ifindex}") }.into()
            }
            libc::EOPNOTSUPP if mode == Mode::Native => LinkError::NoNativeXdp { ifindex }.into(),
            libc::EBUSY | libc::EEXIST => LinkError::Busy { ifindex }.into(),
            _ => failed(format!("attaching program id {} to interface {ifindex}", program.id()), e),
        })?;
        Self::from_fd(fd)
    }

    /// Takes over a link's descriptor; `NotXdp` if it is a link of another kind.
    pub fn from_fd(fd: OwnedFd) -> Result<XdpLink> {
        expect_kind(fd.as_fd(), "bpf-link")?;
        let info = raw_info(fd.as_fd())?;
        if info.type_ != sys::BPF_LINK_TYPE_XDP {
            return Err(LinkError::NotXdp { link: info.id, kind: info.type_ }.into());
        }
        Ok(XdpLink { fd, id: info.id })
    }

    /// The link with this id, whoever made it.
    pub fn from_id(id: u32) -> Result<XdpLink> {
        // SAFETY: a plain number.
        let fd = owned(unsafe { sys::bpf_link_get_fd_by_id(id) })
            .map_err(|e| failed(format!("opening link id {id}"), e))?;
        Self::from_fd(fd)
    }

    /// The link pinned at `path`.
    pub fn from_pin(path: &Path) -> Result<XdpLink> {
        Self::from_fd(crate::bpffs::open_pin(path)?)
    }

    /// Pins the link at `path`, in a BPF file system: from then on it outlives every process.
    pub fn pin(&self, path: &Path) -> Result<()> {
        crate::bpffs::pin(self.fd.as_fd(), path)
    }

    /// Puts another program in place at once: each packet meets the old one or the new one.
    ///
    /// With `expected`, only if the link runs that program now ([`LinkError::NotTheExpectedProgram`] otherwise).
    pub fn update(&self, new: &Program, expected: Option<&Program>) -> Result<()> {
        let opts = sys::bpf_link_update_opts {
            sz: size_of::<sys::bpf_link_update_opts>() as _,
            flags: if expected.is_some() { sys::BPF_F_REPLACE } else { 0 },
            old_prog_fd: expected.map_or(0, |p| p.as_fd().as_raw_fd() as u32),
            ..Default::default()
        };
        // SAFETY: `opts` lives during the call; the descriptors are live.
        let ret = unsafe { sys::bpf_link_update(self.fd.as_raw_fd(), new.as_fd().as_raw_fd(), &opts) };
        check(ret).map_err(|e| match e.0 {
            // `bpf_xdp_link_update` in net/core/dev.c answers EPERM for a mismatch.
            libc::EPERM if self.runs_another_than(expected) => {
                LinkError::NotTheExpectedProgram { link: self.id }.into()
            }
            libc::ENOLINK | libc::ENODEV => LinkError::Detached { link: self.id }.into(),
            _ => failed(format!("putting program id {} on link {}", new.id(), self.id), e),
        })?;
        Ok(())
    }

    fn runs_another_than(&self, expected: Option<&Program>) -> bool {
        let runs = self.info().map(|i| i.program_id).ok();
        expected.is_some_and(|e| Some(e.id()) != runs)
    }

    /// Detaches the program now; the link object stays, attached to nothing. Works on pinned links too.
    pub fn detach(&self) -> Result<()> {
        // SAFETY: a live descriptor.
        check(unsafe { sys::bpf_link_detach(self.fd.as_raw_fd()) })
            .map_err(|e| failed(format!("detaching link {}", self.id), e))?;
        Ok(())
    }

    /// The kernel's id of the link.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What the link runs now, and where.
    pub fn info(&self) -> Result<LinkInfo> {
        let info = raw_info(self.fd.as_fd())?;
        // SAFETY: the constructor made sure that this is an XDP link, for which the kernel fills this member.
        let ifindex = unsafe { info.__bindgen_anon_1.xdp.ifindex };
        Ok(LinkInfo { id: info.id, program_id: info.prog_id, ifindex })
    }
}

impl AsFd for XdpLink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn failed(doing: String, errno: Errno) -> Error {
    match Error::from_errno(doing, errno) {
        Error::Kernel { doing, errno } => LinkError::Kernel { doing, errno }.into(),
        other => other,
    }
}

pub(crate) fn raw_info(fd: BorrowedFd<'_>) -> Result<sys::bpf_link_info> {
    let mut info = sys::bpf_link_info::default();
    let mut len = size_of::<sys::bpf_link_info>() as u32;
    // SAFETY: `info` is a plain structure of `len` bytes; its pointers are null and their lengths zero.
    check(unsafe { sys::bpf_link_get_info_by_fd(fd.as_raw_fd(), &mut info, &mut len) })
        .map_err(|e| failed("asking what a link is".to_owned(), e))?;
    Ok(info)
}

/// The iterator links made for one map each: ids of link and map.
pub(crate) fn iterators() -> Result<Vec<(u32, u32)>> {
    let mut found = Vec::new();
    for id in ids("links", sys::bpf_link_get_next_id)? {
        // SAFETY: a plain number.
        let fd = match owned(unsafe { sys::bpf_link_get_fd_by_id(id) }) {
            Ok(fd) => fd,
            // Gone since, or not yet settled; a link without a descriptor cannot be opened by anyone.
            Err(Errno(libc::ENOENT | libc::EAGAIN)) => continue,
            Err(e) => return Err(failed(format!("opening link id {id}"), e)),
        };
        let info = raw_info(fd.as_fd())?;
        // SAFETY: zeroed before the call; for iterator links the kernel fills this member, and leaves the map
        // id zero when the target is no map.
        let over = unsafe { info.__bindgen_anon_1.iter.__bindgen_anon_1.map.map_id };
        if info.type_ == sys::BPF_LINK_TYPE_ITER && over != 0 {
            found.push((id, over));
        }
    }
    Ok(found)
}
