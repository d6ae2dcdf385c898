//! The check in front of a specialized program: is it still the right one?
//!
//! One load and one comparison. The epoch is live data, so no pass folds, moves or merges the load.

use runnel_ir::{
    Builder, Cond, Data, DataKind, DataObject, InstData, Program, Size, Target, Terminator, Value, ValueDef,
    Width,
};

/// The guard of a program.
pub struct Guard {
    /// The live object that holds the epoch.
    pub epoch_data: Data,
    /// The live object that counts the packets for which the guard failed.
    pub fallbacks: Data,
    /// The epoch for which the program is right.
    pub epoch: u64,
}

/// Puts the guard in front of `program`.
pub fn insert(program: &mut Program, epoch: u64) -> Guard {
    let live =
        |name: &str| DataObject { name: name.into(), kind: DataKind::Live, stride: 0, bytes: vec![0; 8] };
    let guard = Guard {
        epoch_data: program.data.push(live("epoch")),
        fallbacks: program.data.push(live("fallbacks")),
        epoch,
    };
    let body = program.entry();
    let old_ctx = program.blocks[body].params[0];
    let entry = program.new_block();
    let stale = program.new_block();
    program.layout.insert(0, entry);
    program.layout.push(stale);
    let ctx = program.append_param(entry);
    program.blocks[body].params.clear();
    program.map_values(|v| if v == old_ctx { ctx } else { v });

    let mut b = Builder::at(program, entry);
    guard.check(&mut b, Target::to(body), Target::to(stale));
    b.switch_to(stale);
    let counter = b.data_addr(guard.fallbacks, 0);
    let one = b.iconst(1);
    b.effect(InstData::AtomicAdd { size: Size::B8, ptr: counter, offset: 0, value: one });
    b.terminate(Terminator::Deopt(ctx));
    guard
}

impl Guard {
    /// Ends the block being written: to `fresh` while the epoch is the right one, else to `stale`.
    pub fn check(&self, b: &mut Builder<'_>, fresh: Target, stale: Target) {
        let address = b.data_addr(self.epoch_data, 0);
        let now = b.load(Size::B8, address, 0);
        let right = b.iconst(self.epoch);
        b.branch(Cond::Eq, Width::W64, now, right, fresh, stale);
    }

    /// Whether `terminator` is a check of this guard that goes to its first target while the program is right.
    pub fn is_check(&self, program: &Program, terminator: &Terminator) -> bool {
        let Terminator::Branch { cond: Cond::Eq, lhs, .. } = terminator else { return false };
        self.is_epoch(program, *lhs)
    }

    fn is_epoch(&self, program: &Program, value: Value) -> bool {
        let ValueDef::Inst(inst) = program.values[value] else { return false };
        match &program.insts[inst].data {
            InstData::Load { ptr, .. } => {
                matches!(program.def(*ptr), Some(InstData::DataAddr { data, .. }) if *data == self.epoch_data)
            }
            _ => false,
        }
    }
}
