//! Replaces a lookup with the probe of a representation.
//!
//! The block is split behind the lookup; what follows takes the address of the value, or 0, as its parameter. A probe
//! ends with a row id; id 0 is the miss, any other is masked (so that the kernel's verifier sees the bound) and
//! becomes the address of a row. Jump threading then joins the miss with the program's own test for it.

use runnel_ir::{
    BinaryOp, Block, Builder, Cond, Data, Key, Program, Table, Target, Terminator, Value, Width,
};
use runnel_tables::{Representation, Rows};

use super::Site;
use super::guard::Guard;

/// What to put in a lookup's place.
pub struct Probe<'a> {
    /// How the table is represented.
    pub representation: &'a Representation,
    /// The objects that the probe addresses.
    pub objects: &'a [Data],
    /// The values.
    pub rows: &'a Rows,
    /// The object that holds the values.
    pub data: Data,
}

/// Replaces `site`. With a stand-in table, the guard is checked first, and where it fails the stand-in is looked up.
/// Gives the value that stands for the lookup's result now.
pub fn apply(
    program: &mut Program,
    guard: &Guard,
    site: &Site,
    probe: &Probe<'_>,
    standby: Option<Table>,
) -> Value {
    let (rest, result) = split(program, site);
    let mut start = site.block;
    if let Some(table) = standby {
        let (fresh, stale) = (push_block(program), push_block(program));
        let mut b = Builder::at(program, start);
        b.set_origin(site.origin);
        guard.check(&mut b, Target::to(fresh), Target::to(stale));
        b.switch_to(stale);
        let found = b.lookup(table, site.key.clone());
        b.jump(Target::with(rest, [found]));
        start = fresh;
    }
    let done = push_block(program);
    let row = program.append_param(done);
    emit(program, probe, start, &site.key, done);
    let mut b = Builder::at(program, done);
    b.set_origin(site.origin);
    if !probe.representation.always_hits() {
        let hit = b.create_block();
        let zero = b.iconst(0);
        b.branch(Cond::Eq, Width::W32, row, zero, Target::with(rest, [zero]), Target::to(hit));
        b.switch_to(hit);
    }
    let address = row_address(&mut b, probe, row);
    b.jump(Target::with(rest, [address]));
    result
}

fn emit(program: &mut Program, probe: &Probe<'_>, start: Block, key: &Key, done: Block) {
    probe.representation.emit(program, probe.objects, start, key, done);
}

/// The address of a row whose id is known to be a hit.
fn row_address(b: &mut Builder<'_>, probe: &Probe<'_>, row: Value) -> Value {
    let rows = probe.rows;
    let base = b.data_addr(probe.data, 0);
    // Row 0 repeats the one value that there is.
    if rows.rows.len() <= 2 {
        return base;
    }
    let masked = b.binary_imm(BinaryOp::And, Width::W64, row, u64::from(rows.mask()));
    let offset = b.binary_imm(BinaryOp::Shl, Width::W64, masked, u64::from(rows.shift()));
    b.binary(BinaryOp::Add, Width::W64, base, offset)
}

/// Makes a block at the end of the layout.
pub fn push_block(program: &mut Program) -> Block {
    let block = program.new_block();
    program.layout.push(block);
    block
}

/// Takes the lookup out and cuts its block there: the block keeps what stood before, without a terminator; the new
/// block has what stood behind, and as its parameter, which is given too, the lookup's result.
pub fn split(program: &mut Program, site: &Site) -> (Block, Value) {
    let rest = push_block(program);
    let result = program.append_param(rest);
    let tail = program.blocks[site.block].insts.split_off(site.index + 1);
    program.blocks[site.block].insts.pop();
    program.blocks[rest].insts = tail;
    let end =
        std::mem::replace(&mut program.blocks[site.block].terminator, Terminator::Jump(Target::to(rest)));
    program.blocks[rest].terminator = end;
    program.map_values(|v| if v == site.result { result } else { v });
    (rest, result)
}
