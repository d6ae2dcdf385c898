//! Facts about IR programs that hold until the program changes: who uses a value, what a pointer points into,
//! which accesses may touch the same bytes, how the program treats its tables.
//!
//! Each module computes one kind of fact afresh from a program; nothing is cached or updated in place, and nothing
//! here changes a program. What the facts are used for is the passes' business.

mod access;
mod available;
mod bits;
mod escape;
mod extents;
mod flow;
mod memory;
mod provenance;
mod uses;

use runnel_ir::Block;
use runnel_ir::cfg::Cfg;

pub use access::{LookupSite, TableAccess, TableAccesses, Verdict, WriteReason};
pub use available::{Available, Facts, Point};
pub use bits::{Knowledge, PossibleBits};
pub use escape::Escapes;
pub use extents::Extents;
pub use flow::{Escape, EscapeKind, Field, PointerUses};
pub use memory::{Memory, Place};
pub use provenance::{Object, Offset, Pointer, Provenance, Provenances};
pub use uses::{Site, Use, Uses};

/// Visits all blocks in reverse post-order until no visit says that it changed something. Without loops that takes
/// one round, and one more to see it.
fn settle(cfg: &Cfg, mut visit: impl FnMut(Block) -> bool) {
    let mut changed = true;
    while changed {
        changed = false;
        for &block in cfg.order() {
            changed |= visit(block);
        }
    }
}
