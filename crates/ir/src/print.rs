//! The text form, printed. [`crate::parse_program`] reads it back.

use std::fmt;

use crate::{DataKind, InstData, Key, Program, TableKind, Target, Terminator, Width};

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut s, b| {
        // Writing to a String cannot fail.
        let _ = write!(s, "{b:02x}");
        s
    })
}

fn at(offset: i64) -> String {
    match offset {
        0 => String::new(),
        o if o < 0 => format!("{o}"),
        o => format!("+{o}"),
    }
}

struct Shown<'a>(&'a Key);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, part) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{}:{} {}", part.offset, part.size.bits(), part.value)?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for Width {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bits())
    }
}

impl fmt::Display for InstData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstData::Const(c) if *c < 10 => write!(f, "const {c}"),
            InstData::Const(c) => write!(f, "const {c:#x}"),
            InstData::Binary { op, width, lhs, rhs } => write!(f, "{op}.{width} {lhs}, {rhs}"),
            InstData::Unary { op, arg } => write!(f, "{op} {arg}"),
            InstData::Load { size, ptr, offset } => {
                write!(f, "load.{} {ptr}{}", size.bits(), at(i64::from(*offset)))
            }
            InstData::Store { size, ptr, offset, value } => {
                write!(f, "store.{} {ptr}{}, {value}", size.bits(), at(i64::from(*offset)))
            }
            InstData::AtomicAdd { size, ptr, offset, value } => {
                write!(f, "atomic_add.{} {ptr}{}, {value}", size.bits(), at(i64::from(*offset)))
            }
            InstData::CtxLoad { size, ctx, offset } => {
                write!(f, "ctx_load.{} {ctx}{}", size.bits(), at(i64::from(*offset)))
            }
            InstData::SlotAddr { slot, offset } => write!(f, "slot_addr {slot}{}", at(i64::from(*offset))),
            InstData::DataAddr { data, offset } => write!(f, "data_addr {data}{}", at(i64::from(*offset))),
            InstData::TableRef(table) => write!(f, "table_ref {table}"),
            InstData::TableValue { table, offset } => {
                write!(f, "table_value {table}{}", at(i64::from(*offset)))
            }
            InstData::Lookup { table, key } => write!(f, "lookup {table} {}", Shown(key)),
            InstData::Update { table, key, value, flags } => {
                write!(f, "update {table} {}, {value}, {flags}", Shown(key))
            }
            InstData::Delete { table, key } => write!(f, "delete {table} {}", Shown(key)),
            InstData::Call { callee, args } => {
                write!(f, "call {callee}(")?;
                for (i, arg) in args.iter().enumerate() {
                    write!(f, "{}{arg}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.block)?;
        if !self.args.is_empty() {
            for (i, arg) in self.args.iter().enumerate() {
                write!(f, "{}{arg}", if i > 0 { ", " } else { "(" })?;
            }
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl fmt::Display for Terminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Terminator::Jump(target) => write!(f, "jump {target}"),
            Terminator::Branch { cond, width, lhs, rhs, then, other } => {
                write!(f, "branch.{cond}.{width} {lhs}, {rhs}, {then}, {other}")
            }
            Terminator::Return(v) => write!(f, "return {v}"),
            Terminator::Deopt(v) => write!(f, "deopt {v}"),
        }
    }
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TableKind::Exact => "exact",
            TableKind::Prefix => "prefix",
            TableKind::Index => "index",
            TableKind::Opaque => "opaque",
        })
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {:?} {{", self.name)?;
        for (t, table) in &self.tables {
            write!(
                f,
                "  table {t} {:?} {} key {} value {} entries {}",
                table.name, table.kind, table.key_size, table.value_size, table.max_entries
            )?;
            let flags = [(table.per_cpu, " per_cpu"), (table.keeps_recency, " keeps_recency")];
            flags.iter().filter(|(on, _)| *on).try_for_each(|(_, text)| f.write_str(text))?;
            writeln!(f)?;
        }
        for (d, data) in &self.data {
            let kind = match data.kind {
                DataKind::Const => "const",
                DataKind::Live => "live",
            };
            write!(f, "  data {d} {:?} {kind}", data.name)?;
            if data.stride != 0 {
                write!(f, " stride {}", data.stride)?;
            }
            writeln!(f, " = {}", hex(&data.bytes))?;
        }
        for (s, slot) in &self.slots {
            writeln!(f, "  slot {s} {}", slot.size)?;
        }
        for (c, callee) in &self.callees {
            write!(f, "  callee {c} {:?} number {} args {}", callee.name, callee.number, callee.arity)?;
            for (name, _) in callee.effects.iter_names() {
                write!(f, " {}", name.to_lowercase())?;
            }
            writeln!(f)?;
        }
        for &block in &self.layout {
            let data = &self.blocks[block];
            write!(f, "{block}")?;
            for (i, param) in data.params.iter().enumerate() {
                write!(f, "{}{param}", if i > 0 { ", " } else { "(" })?;
            }
            writeln!(f, "{}:", if data.params.is_empty() { "" } else { ")" })?;
            for &inst in &data.insts {
                let node = &self.insts[inst];
                f.write_str("  ")?;
                if let Some(result) = node.result {
                    write!(f, "{result} = ")?;
                }
                write!(f, "{}", node.data)?;
                if let Some(origin) = node.origin {
                    write!(f, " @{origin}")?;
                }
                writeln!(f)?;
            }
            writeln!(f, "  {}", data.terminator)?;
        }
        writeln!(f, "}}")
    }
}
