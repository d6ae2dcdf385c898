//! No structure at all: every lookup has the same outcome.
//!
//! Either nothing can be found, or the key is known, or every key finds one and the same value.

use runnel_ir::{Block, Builder, Data, Key};

use super::{Probe, jump_to_row};
use crate::rows::RowId;

/// One outcome for every key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Constant {
    /// The outcome: a row, or the miss.
    pub row: RowId,
}

impl Probe for Constant {
    fn lookup(&self, _: &[u8]) -> RowId {
        self.row
    }

    fn always_hits(&self) -> bool {
        self.row != RowId::MISS
    }

    fn objects(&self) -> Vec<(&'static str, &[u8])> {
        Vec::new()
    }

    fn emit(&self, b: &mut Builder<'_>, _: &[Data], _: &Key, done: Block) {
        jump_to_row(b, done, self.row);
    }

    fn probe_ns(&self) -> f64 {
        0.0
    }

    fn name(&self) -> &'static str {
        if self.always_hits() { "constant" } else { "empty" }
    }

    fn why(&self) -> String {
        if self.always_hits() {
            "every lookup gives the same value".into()
        } else {
            "no lookup can find an entry".into()
        }
    }
}
