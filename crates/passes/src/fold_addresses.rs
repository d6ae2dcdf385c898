//! Moves constants that are added to an address into the offset of the load, store or atomic that uses it.
//!
//! The access then goes by the value that the address was computed from, so that accesses through different sums look
//! alike to later passes, and sums that were made for one access each die. The offset stays within 16 bits,
//! signed, which is what an eBPF instruction holds (RFC 9669, section 3); what does not fit is left alone.
//!
//! Uses: chains of constant additions. Invalidates: def-use lists.

use runnel_analysis::Provenances;
use runnel_ir::cfg::Cfg;
use runnel_ir::{InstData, Program, Value};

/// Folds constant additions into the accesses of `program`; says whether it changed.
pub fn fold_addresses(program: &mut Program) -> bool {
    let cfg = Cfg::new(program);
    let provenances = Provenances::new(program, &cfg);
    let mut changed = false;
    for &block in cfg.order() {
        for i in 0..program.blocks[block].insts.len() {
            let inst = program.blocks[block].insts[i];
            changed |= fold(&provenances, &mut program.insts[inst].data);
        }
    }
    changed
}

fn fold(provenances: &Provenances, data: &mut InstData) -> bool {
    let (InstData::Load { ptr, offset, .. }
    | InstData::Store { ptr, offset, .. }
    | InstData::AtomicAdd { ptr, offset, .. }) = data
    else {
        return false;
    };
    let Some((base, folded)) = folded(provenances, *ptr, *offset) else { return false };
    (*ptr, *offset) = (base, folded);
    true
}

/// The address that `ptr` was computed from, and the offset from there.
fn folded(provenances: &Provenances, ptr: Value, offset: i32) -> Option<(Value, i32)> {
    let (base, distance) = provenances.base(ptr);
    let sum = i16::try_from(distance.checked_add(i64::from(offset))?).ok()?;
    (base != ptr).then_some((base, i32::from(sum)))
}
