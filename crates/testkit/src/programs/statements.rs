//! Statements without branches of their own: arithmetic, memory, tables, calls.

use runnel_ir::{BinaryOp, Cond, InstData, Key, KeyPart, Size, SlotData, TableKind, UnaryOp, Value, Width};

use super::Generator;
use super::declarations::Keyed;
use super::flow::Test;
use super::inputs::WORLD;
use super::scope::{Kills, Origin, Pointer, View};

/// Bytes of stack that a program's slots take at most: eBPF gives 512, of which some go to keys and spilled values.
const MAX_STACK: u32 = 128;

/// Lengths that packets are checked for.
const LENGTHS: [u32; 7] = [14, 18, 20, 34, 42, 54, 90];

impl Generator<'_> {
    /// Writes one statement.
    pub(super) fn statement(&mut self) {
        self.budget = self.budget.saturating_sub(1);
        let forks = self.may_nest() && self.paths_left() >= 2.0;
        match self.below(100) {
            0..18 => self.arithmetic(),
            18..24 => self.unary(),
            24..40 => self.load(),
            40..48 => self.store(),
            48..51 => self.atomic_add(),
            51..56 => self.new_slot(),
            56..61 => self.check_packet(),
            61..64 => self.check_variable_part(),
            64..73 => self.lookup(),
            73..78 => self.update(),
            78..80 => self.delete(),
            80..87 => self.call(),
            87..89 => self.read_context(),
            89..94 if forks => self.conditional(),
            94..96 if self.paths_left() >= 4.0 => self.switch(),
            96..99 if self.may_nest() && self.paths_left() >= 4.0 => self.counted_loop(),
            99 if !self.config.kernel_acceptable => self.unreachable_block(),
            _ => self.arithmetic(),
        }
    }

    pub(super) fn arithmetic(&mut self) {
        let op = self.pick(BinaryOp::ALL);
        let width = self.pick(&[Width::W32, Width::W64]);
        let (lhs, rhs) = (self.scalar(), self.scalar());
        let result = self.at().binary(op, width, lhs, rhs);
        self.scope.scalars.push(result);
    }

    fn unary(&mut self) {
        let op = self.pick(UnaryOp::ALL);
        let arg = self.scalar();
        let result = self.at().unary(op, arg);
        self.scope.scalars.push(result);
    }

    fn read_context(&mut self) {
        let ctx = self.program.context();
        let offset = self.pick(&[12, 16]);
        let field = self.at().ctx_load(Size::B4, ctx, offset);
        self.scope.scalars.push(field);
    }

    /// A pointer that `fits`, if a few attempts find one.
    pub(super) fn pointer(&mut self, fits: impl Fn(&Pointer) -> bool) -> Option<Pointer> {
        (0..4).find_map(|_| self.any_pointer().filter(&fits))
    }

    /// A pointer to whatever is in reach.
    fn any_pointer(&mut self) -> Option<Pointer> {
        match self.below(10) {
            0..3 => {
                let view = self.scope.packet.filter(|view| view.len > 0)?;
                Some(Pointer {
                    value: view.data,
                    low: 0,
                    high: view.len as i32,
                    origins: vec![Origin::Packet],
                    writable: true,
                    // The kernel forgets what was checked once something unknown is added.
                    steerable: !self.config.kernel_acceptable,
                })
            }
            3..5 if !self.scope.pointers.is_empty() => {
                let at = self.below(self.scope.pointers.len() as u32) as usize;
                Some(self.scope.pointers[at].clone())
            }
            5..7 => self.slot_pointer(),
            7 => {
                let data = self.pick(&self.declared.plain.clone());
                let size = self.program.data[data].bytes.len() as u32;
                let base = self.below(size / 8) * 8;
                let value = self.at().data_addr(data, base);
                Some(fixed(value, base, size, false))
            }
            8 => Some(self.row_pointer()),
            _ => {
                let table = self.declared.globals.first().copied()?;
                let size = self.program.tables[table].value_size;
                let base = self.below(size / 8) * 8;
                let value = self.at().value(InstData::TableValue { table, offset: base });
                Some(fixed(value, base, size, true))
            }
        }
    }

    fn slot_pointer(&mut self) -> Option<Pointer> {
        let slots = self.scope.slots.clone();
        if slots.is_empty() {
            return None;
        }
        let slot = self.pick(&slots);
        let size = self.program.slots[slot].size;
        let base = self.below(size / 8) * 8;
        let value = self.at().slot_addr(slot, base);
        Some(Pointer { origins: vec![Origin::Slot], ..fixed(value, base, size, true) })
    }

    /// A row that a variable chooses.
    fn row_pointer(&mut self) -> Pointer {
        let rows = self.declared.rows;
        let index = self.masked(u64::from(rows.count - 1));
        let mut at = self.at();
        let distance = at.binary_imm(BinaryOp::Mul, Width::W64, index, u64::from(rows.stride));
        let base = at.data_addr(rows.data, 0);
        let value = at.binary(BinaryOp::Add, Width::W64, base, distance);
        Pointer { steerable: false, ..fixed(value, 0, rows.stride, false) }
    }

    /// An address and offset of `size` bytes at a pointer, with something variable added where that is possible.
    fn place(&mut self, pointer: &Pointer, size: Size, aligned: bool) -> Option<(Value, i32)> {
        let room = pointer.span().checked_sub(size.bytes())?;
        let align = if aligned || pointer.may_be(Origin::Slot) { size.bytes() } else { 1 };
        let mut value = pointer.value;
        let mut reach = 0;
        if pointer.steerable && room > 0 && self.chance(25) {
            let widest = 1 << room.ilog2();
            // Bits below the alignment stay clear.
            let mask = (widest - 1) & !(align - 1);
            let index = self.masked(u64::from(mask));
            value = self.at().binary(BinaryOp::Add, Width::W64, value, index);
            reach = mask;
        }
        let first = pointer.low + (-pointer.low).rem_euclid(align as i32);
        let last = pointer.high - size.bytes() as i32 - reach as i32;
        if last < first {
            return None;
        }
        let steps = (last - first) as u32 / align;
        let offset = first + (self.below(steps + 1) * align) as i32;
        Some((value, offset))
    }

    fn load(&mut self) {
        let size = self.size();
        let Some(pointer) = self.pointer(|p| p.span() >= size.bytes()) else { return };
        let Some((ptr, offset)) = self.place(&pointer, size, false) else { return };
        let loaded = self.at().load(size, ptr, offset);
        self.scope.scalars.push(loaded);
    }

    fn store(&mut self) {
        let size = self.size();
        let Some(pointer) = self.pointer(|p| p.writable && p.span() >= size.bytes()) else { return };
        let Some((ptr, offset)) = self.place(&pointer, size, false) else { return };
        let value = self.scalar();
        self.at().store(size, ptr, offset, value);
    }

    fn atomic_add(&mut self) {
        let size = self.pick(&[Size::B4, Size::B8]);
        // The kernel has no atomics on packets,
        let in_kernel = self.config.kernel_acceptable;
        let fits =
            |p: &Pointer| p.writable && p.span() >= size.bytes() && !(in_kernel && p.may_be(Origin::Packet));
        let Some(pointer) = self.pointer(fits) else { return };
        // nor on the stack at an offset that varies.
        let pointer = Pointer {
            steerable: pointer.steerable && !(in_kernel && pointer.may_be(Origin::Slot)),
            ..pointer
        };
        let Some((ptr, offset)) = self.place(&pointer, size, true) else { return };
        let value = self.scalar();
        self.at().effect(InstData::AtomicAdd { size, ptr, offset, value });
    }

    /// Stores to every byte of a slot: a new one, or one that was used before.
    fn new_slot(&mut self) {
        let used: u32 = self.program.slots.values().map(|slot| slot.size).sum();
        let size = self.pick(&[8, 16, 24, 32]);
        let slot = if used + size <= MAX_STACK && self.chance(70) {
            self.program.slots.push(SlotData { size })
        } else {
            let all: Vec<_> = self.program.slots.keys().collect();
            if all.is_empty() {
                return;
            }
            self.pick(&all)
        };
        let unit = self.pick(&[Size::B4, Size::B8]);
        for offset in (0..self.program.slots[slot].size).step_by(unit.bytes() as usize) {
            let value = self.scalar();
            let ptr = self.at().slot_addr(slot, offset);
            self.at().store(unit, ptr, 0, value);
        }
        self.scope.slots.push(slot);
    }

    /// The packet's bounds, read again when they are not known.
    fn view(&mut self) -> View {
        let known = self.scope.packet.filter(|_| !self.chance(5));
        known.unwrap_or_else(|| self.read_packet_bounds())
    }

    /// Checks that the packet has some length.
    pub(super) fn check_packet(&mut self) {
        let view = self.view();
        let longer: Vec<u32> = LENGTHS.into_iter().filter(|&len| len > view.len).collect();
        // Now and then a check that is known to hold.
        let len = if longer.is_empty() || self.chance(20) { self.pick(&LENGTHS) } else { self.pick(&longer) };
        let limit = self.at().binary_imm(BinaryOp::Add, Width::W64, view.data, u64::from(len));
        let bad = self.beyond(limit, view.end);
        let negatable = !self.config.kernel_acceptable;
        self.unless(bad, negatable, 30, |g| {
            if let Some(view) = &mut g.scope.packet {
                view.len = view.len.max(len);
            }
        });
    }

    /// Checks that the packet goes on for some bytes from a variable offset.
    fn check_variable_part(&mut self) {
        let view = self.view();
        let index = self.masked(0x3f);
        let value = self.at().binary(BinaryOp::Add, Width::W64, view.data, index);
        let len = self.pick(&[4, 8, 20]);
        let limit = self.at().binary_imm(BinaryOp::Add, Width::W64, value, u64::from(len));
        let bad = self.beyond(limit, view.end);
        let negatable = !self.config.kernel_acceptable;
        self.unless(bad, negatable, 30, |g| {
            g.scope.pointers.push(Pointer {
                origins: vec![Origin::Packet],
                steerable: !g.config.kernel_acceptable,
                ..fixed(value, 0, len, true)
            });
        });
    }

    /// That a pointer is beyond the packet's end; written in other ways too, unless a kernel is to follow.
    fn beyond(&mut self, limit: Value, end: Value) -> Test {
        let width = Width::W64;
        if self.config.kernel_acceptable || self.chance(60) {
            Test { cond: Cond::Ugt, width, lhs: limit, rhs: end }
        } else {
            Test { cond: Cond::Ult, width, lhs: end, rhs: limit }
        }
    }

    fn any_table(&mut self) -> Keyed {
        let at = self.below(self.declared.keyed.len() as u32) as usize;
        self.declared.keyed[at].clone()
    }

    /// A key whose parts are small numbers most of the time, as those of the entries are.
    fn key(&mut self, keyed: &Keyed) -> Key {
        let kind = self.program.tables[keyed.table].kind;
        let bits = u64::from(self.program.tables[keyed.table].key_size.saturating_sub(4)) * 8;
        let mut key = Key::new();
        let mut offset = 0;
        for (i, &size) in keyed.parts.iter().enumerate() {
            let value = match (kind, i) {
                // Rarely longer than there are bits, which finds nothing.
                (TableKind::Prefix, 0) if self.chance(70) => self.at().iconst(bits),
                (TableKind::Prefix, 0) => self.masked(0x1f),
                (TableKind::Index, _) => self.masked(7),
                _ if self.chance(90) => self.masked(WORLD - 1),
                _ => self.scalar(),
            };
            key.push(KeyPart { offset, size, value });
            offset += size.bytes() as u16;
        }
        key
    }

    fn lookup(&mut self) {
        let keyed = self.any_table();
        let key = self.key(&keyed);
        let value = self.at().lookup(keyed.table, key);
        let zero = self.at().iconst(0);
        let size = self.program.tables[keyed.table].value_size;
        let bad = Test { cond: Cond::Eq, width: Width::W64, lhs: value, rhs: zero };
        self.unless(bad, true, 90, |g| {
            g.scope
                .pointers
                .push(Pointer { origins: vec![Origin::Entry(keyed.table)], ..fixed(value, 0, size, true) });
        });
    }

    fn update(&mut self) {
        let keyed = self.any_table();
        let size = self.program.tables[keyed.table].value_size;
        let table = keyed.table;
        let holds = |p: &Pointer| p.low <= 0 && p.high >= size as i32 && !p.may_be(Origin::Entry(table));
        if !self.chance(40) {
            self.new_slot();
        }
        let Some(pointer) = self.pointer(holds) else { return };
        let key = self.key(&keyed);
        // Any, only new, only old; the rest are refused.
        let flags = self.pick(&[0, 0, 0, 0, 1, 2, 3, 4]);
        let flags = self.at().iconst(flags);
        let result = self.at().value(InstData::Update { table, key, value: pointer.value, flags });
        self.scope.scalars.push(result);
        self.ended(&keyed);
    }

    fn delete(&mut self) {
        let keyed = self.any_table();
        let key = self.key(&keyed);
        let result = self.at().value(InstData::Delete { table: keyed.table, key });
        self.scope.scalars.push(result);
        self.ended(&keyed);
    }

    /// Entries of a table may be gone or replaced, so that pointers to their values are stale.
    fn ended(&mut self, keyed: &Keyed) {
        if self.program.tables[keyed.table].kind != TableKind::Index {
            self.kill(Kills { tables: vec![keyed.table], ..Kills::default() });
        }
    }

    fn kill(&mut self, kills: Kills) {
        self.scope.apply(&kills);
        self.kills.merge(kills);
    }

    fn call(&mut self) {
        match self.below(12) {
            0..3 if !self.declared.callees.varying.is_empty() => {
                let callee = self.pick(&self.declared.callees.varying.clone());
                let result = self.at().call(callee, []);
                self.scope.scalars.push(result);
            }
            3 => {
                let ifindex = self.scalar();
                let flags = self.pick(&[0, 0, 0, 1]);
                let flags = self.at().iconst(flags);
                let callee = self.declared.callees.redirect;
                let result = self.at().call(callee, [ifindex, flags]);
                self.scope.scalars.push(result);
            }
            4..6 => self.redirect_map(),
            6 => self.tail_call(),
            7..9 if !self.scope.in_loop => self.move_packet(),
            _ => self.checksum(),
        }
    }

    fn redirect_map(&mut self) {
        let index = if self.chance(80) { self.masked(7) } else { self.scalar() };
        let flags = self.pick(&[0, 1, 2, 3, 64]);
        let (callee, ports) = (self.declared.callees.redirect_map, self.declared.ports);
        let mut at = self.at();
        let flags = at.iconst(flags);
        let table = at.value(InstData::TableRef(ports));
        let result = at.call(callee, [table, index, flags]);
        self.scope.scalars.push(result);
    }

    /// What it gives when it comes back is not used: the kernel gives nothing.
    fn tail_call(&mut self) {
        let index = self.masked(7);
        let ctx = self.program.context();
        let (callee, programs) = (self.declared.callees.tail_call, self.declared.programs);
        let mut at = self.at();
        let table = at.value(InstData::TableRef(programs));
        at.call(callee, [ctx, table, index]);
    }

    fn move_packet(&mut self) {
        let ctx = self.program.context();
        let (head, tail) = (self.declared.callees.adjust_head, self.declared.callees.adjust_tail);
        let callee = self.pick(&[head, tail]);
        // A packet may refuse any of them, by being too short or by being out of room.
        let delta: i32 = self.pick(&[-40, -14, -4, -1, 0, 1, 4, 14, 40]);
        let mut at = self.at();
        let delta = at.iconst(u64::from(delta as u32));
        let result = at.call(callee, [ctx, delta]);
        self.scope.scalars.push(result);
        self.kill(Kills { packet: true, ..Kills::default() });
    }

    /// The checksum of some bytes, with or without others taken out.
    fn checksum(&mut self) {
        let sizes = [self.pick(&[0, 4, 8, 16]), self.pick(&[0, 4, 8, 16])];
        let mut args = Vec::new();
        for size in sizes {
            let holds = |p: &Pointer| p.low <= 0 && p.high >= size;
            let pointer = if size == 0 { None } else { self.pointer(holds) };
            let size = if pointer.is_some() { size } else { 0 };
            args.push(pointer.map_or_else(|| self.at().iconst(0), |p| p.value));
            args.push(self.at().iconst(size as u64));
        }
        args.push(self.scalar());
        let callee = self.declared.callees.csum_diff;
        let result = self.at().call(callee, args);
        self.scope.scalars.push(result);
    }
}

/// A pointer to byte `base` of an object of `size` bytes that is always there.
fn fixed(value: Value, base: u32, size: u32, writable: bool) -> Pointer {
    Pointer {
        value,
        low: -(base as i32),
        high: (size - base) as i32,
        origins: vec![Origin::Fixed],
        writable,
        steerable: true,
    }
}
