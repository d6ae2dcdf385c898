//! Where the guard has to be checked again.
//!
//! A program that reads an original table after its guard may see there what was written later. If it then used a
//! specialized lookup, it could combine the new with the old, an order of events that the original never shows (a
//! neighbour added, then the route to it: the neighbour found, the route not). So a specialized lookup that may
//! follow a read of an original table checks the guard anew.

use runnel_analysis::{Object, Provenance, Provenances};
use runnel_ir::cfg::Cfg;
use runnel_ir::{Block, Effects, InstData, Program, SecondaryMap};

use super::Site;
use super::guard::Guard;

/// Whether a path leads from a read of an original table to `site` without a check of the guard in between.
pub fn is_needed(program: &Program, guard: &Guard, site: &Site) -> bool {
    let cfg = Cfg::new(program);
    let provenances = Provenances::new(program, &cfg);
    let reads = |inst| {
        let data = &program.insts[inst].data;
        match data {
            // Sites are replaced in program order, so a lookup that comes before is one that stays; one that comes
            // before by way of a loop is taken for one.
            InstData::Lookup { .. } => inst != site.inst,
            InstData::Load { ptr, .. } => match provenances.of(*ptr) {
                Provenance::Pointer(p) => matches!(p.object, Object::Table(_)),
                Provenance::Unknown => true,
                Provenance::Unreached | Provenance::Null | Provenance::Scalar => false,
            },
            _ => data.effects(program).contains(Effects::READS_TABLES),
        }
    };
    let mut dirty: SecondaryMap<Block, bool> = SecondaryMap::new();
    let mut changed = true;
    while changed {
        changed = false;
        for &block in cfg.order() {
            let data = &program.blocks[block];
            let after = dirty[block] || data.insts.iter().any(|&inst| reads(inst));
            let clean = guard.is_check(program, &data.terminator);
            for (i, target) in data.terminator.targets().enumerate() {
                let now = after && !(clean && i == 0);
                if now && !dirty[target.block] {
                    dirty[target.block] = true;
                    changed = true;
                }
            }
        }
    }
    dirty[site.block] || program.blocks[site.block].insts[..site.index].iter().any(|&inst| reads(inst))
}
