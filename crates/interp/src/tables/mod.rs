//! The tables: what lookups, updates and deletions do, and what they leave behind.
//!
//! The semantics are the kernel's, as of Linux 6.18: `kernel/bpf/hashtab.c` for exact matching,
//! `kernel/bpf/lpm_trie.c` for prefixes, `kernel/bpf/arraymap.c` for indices. A test cannot tell such a table from
//! a real one by what it holds and returns, with these exceptions, where the kernel promises nothing either:
//! which entry of a full recency table goes, and how long a pointer to a replaced or deleted value still shows it
//! (here: until 64 further slots of the table were given back).
//!
//! Absent on purpose: concurrency, spin locks in values, maps of maps, timers. Opaque tables hold nothing here;
//! the host knows what its callees find in them.

mod keyed;
mod prefix;
mod recency;
mod table;
mod values;

use std::collections::BTreeSet;

use runnel_ir::{EntityRef, Program, Table, TableData, TableKind};

use crate::address::{END_PLACE, MAX_TABLES, TABLE_PLACE, entry_table};
use crate::fault::{ControlError, SetupError, What};
use table::TableState;

/// Error numbers of `errno.h` that tables return, as positive numbers.
pub mod errno {
    /// No such entry.
    pub const ENOENT: i64 = 2;
    /// The table is full, or the index beyond its end.
    pub const E2BIG: i64 = 7;
    /// The entry is there already.
    pub const EEXIST: i64 = 17;
    /// Wrong flags, or an operation that the table does not offer.
    pub const EINVAL: i64 = 22;
    /// The prefix table is full.
    pub const ENOSPC: i64 = 28;
}

/// When an update may write, as the low values of its flags say. There are no other flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UpdateMode {
    /// Whether or not there is an entry: flag 0.
    Any,
    /// Only if there is none: flag 1.
    Insert,
    /// Only if there is one: flag 2.
    Replace,
}

impl UpdateMode {
    fn from_flags(flags: u64) -> Option<UpdateMode> {
        match flags {
            0 => Some(UpdateMode::Any),
            1 => Some(UpdateMode::Insert),
            2 => Some(UpdateMode::Replace),
            _ => None,
        }
    }
}

/// All values of all CPUs of one table may take up to this many bytes, as a kernel array may.
const MAX_TABLE_BYTES: u64 = 1 << 31;

/// One entry, as the control plane sees it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Entry {
    /// The key.
    pub key: Box<[u8]>,
    /// The value; of a table with values for each CPU, those of all CPUs one after another, without padding.
    pub value: Box<[u8]>,
}

/// What a table holds: its entries in ascending order of their keys' bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contents {
    /// The table's name.
    pub name: String,
    /// Its entries.
    pub entries: Vec<Entry>,
}

/// The tables of a program, with what they hold.
#[derive(Clone, Debug)]
pub struct Tables {
    tables: Vec<TableState>,
    cpus: u32,
    cpu: u32,
}

impl Tables {
    /// Empty tables for `program`, index tables full of zeros, with values for `cpus` CPUs where each has its own.
    /// Another program that numbers the same tables alike may use them too.
    ///
    /// # Errors
    /// [`SetupError`] when the sizes make no sense or need more memory than is provided.
    pub fn new(program: &Program, cpus: u32) -> Result<Tables, SetupError> {
        let cpus = cpus.max(1);
        let count = program.tables.len();
        if count > MAX_TABLES {
            return Err(SetupError::TooMany { what: "tables", count, limit: MAX_TABLES });
        }
        let mut start = TABLE_PLACE;
        let mut tables = Vec::with_capacity(count);
        for (table, data) in &program.tables {
            let bytes = footprint(data, cpus)?;
            if start + bytes > END_PLACE {
                let what = "all tables together".into();
                return Err(SetupError::TooLarge {
                    what,
                    bytes: start + bytes - TABLE_PLACE,
                    limit: END_PLACE,
                });
            }
            tables.push(TableState::new(table, data, cpus, start)?);
            start += bytes.next_multiple_of(4096);
        }
        Ok(Tables { tables, cpus, cpu: 0 })
    }

    /// Number of CPUs.
    pub fn cpus(&self) -> u32 {
        self.cpus
    }

    /// The CPU whose values programs see.
    pub fn cpu(&self) -> u32 {
        self.cpu
    }

    /// Sets the CPU whose values programs see.
    ///
    /// # Errors
    /// [`ControlError::NoCpu`] beyond the number that the tables were made for.
    pub fn set_cpu(&mut self, cpu: u32) -> Result<(), ControlError> {
        if cpu >= self.cpus {
            return Err(ControlError::NoCpu { cpu, cpus: self.cpus });
        }
        self.cpu = cpu;
        Ok(())
    }

    /// Looks a key up as a program does: counts as a use of the entry. Gives the address of the value, of which it
    /// stays the address until the entry is replaced or deleted; 0 when there is no entry.
    ///
    /// # Errors
    /// [`What::NoSuchTable`] when there is no such table or its keys have another size.
    pub fn lookup(&mut self, table: Table, key: &[u8]) -> Result<u64, What> {
        let cpu = self.cpu;
        Ok(self.state(table, key)?.lookup(key, cpu).unwrap_or(0))
    }

    /// Inserts or replaces an entry as a program does. Gives 0 or a negative error number.
    ///
    /// # Errors
    /// [`What::NoSuchTable`] when there is no such table or its keys or values have another size.
    pub fn update(&mut self, table: Table, key: &[u8], value: &[u8], flags: u64) -> Result<i64, What> {
        let cpu = self.cpu;
        let state = self.state(table, key)?;
        if value.len() != state.data.value_size as usize {
            return Err(What::NoSuchTable { table });
        }
        Ok(outcome(state.update(key, value, flags, Some(cpu))))
    }

    /// Deletes an entry as a program does. Gives 0 or a negative error number.
    ///
    /// # Errors
    /// [`What::NoSuchTable`] when there is no such table or its keys have another size.
    pub fn delete(&mut self, table: Table, key: &[u8]) -> Result<i64, What> {
        Ok(outcome(self.state(table, key)?.delete(key)))
    }

    /// Address of byte `offset` of the value of a table of one entry that is addressed directly.
    ///
    /// # Errors
    /// [`What::NotDirect`] for other tables, [`What::NoSuchTable`] when there is none.
    pub fn direct(&self, table: Table, offset: u32) -> Result<u64, What> {
        let state = self.tables.get(table.index()).ok_or(What::NoSuchTable { table })?;
        match state.data {
            TableData { kind: TableKind::Index, max_entries: 1, per_cpu: false, .. } => {
                Ok(state.first_address() + u64::from(offset))
            }
            _ => Err(What::NotDirect { table }),
        }
    }

    /// Size in bytes of a table's values, as a program sees them.
    ///
    /// # Errors
    /// [`What::NoSuchTable`] when there is no such table.
    pub fn value_size(&self, table: Table) -> Result<usize, What> {
        let state = self.tables.get(table.index()).ok_or(What::NoSuchTable { table })?;
        Ok(state.data.value_size as usize)
    }

    /// Writes an entry as the control plane does. In a table with values for each CPU, `value` is either one value
    /// that all CPUs get or the values of all CPUs one after another.
    ///
    /// # Errors
    /// [`ControlError`] when sizes do not fit or the table refuses.
    pub fn put(&mut self, table: Table, key: &[u8], value: &[u8]) -> Result<(), ControlError> {
        let state = self.control(table, key)?;
        let copies = if state.data.per_cpu { state.copies() } else { 1 };
        let size = state.data.value_size as usize;
        if value.len() != size && value.len() != size * copies {
            return Err(state.wrong_size("value", size * copies, value.len()));
        }
        let (first, _) = value.split_at(size);
        state.update(key, first, 0, None).map_err(|errno| state.refused("the update", errno))?;
        if value.len() > size {
            state.set_copies(key, value);
        }
        Ok(())
    }

    /// Deletes an entry as the control plane does.
    ///
    /// # Errors
    /// [`ControlError`] when sizes do not fit or the table refuses.
    pub fn remove(&mut self, table: Table, key: &[u8]) -> Result<(), ControlError> {
        let state = self.control(table, key)?;
        state.delete(key).map_err(|errno| state.refused("the deletion", errno))
    }

    /// The value of the entry that a lookup of `key` would find, without counting as a use; of a table with values
    /// for each CPU, those of all CPUs one after another.
    ///
    /// # Errors
    /// [`ControlError`] when there is no such table or the key has another size.
    pub fn get(&mut self, table: Table, key: &[u8]) -> Result<Option<Box<[u8]>>, ControlError> {
        Ok(self.control(table, key)?.get(key))
    }

    /// What each table holds, in the order of their numbers.
    pub fn contents(&self) -> Vec<Contents> {
        self.tables.iter().map(TableState::contents).collect()
    }

    /// Keys of the entries of `table` that lookups of programs found since [`Tables::forget_hits`], those that are
    /// gone by now included.
    pub fn entries_reached(&self, table: Table) -> BTreeSet<Box<[u8]>> {
        self.tables.get(table.index()).map(TableState::entries_reached).unwrap_or_default()
    }

    /// Forgets which entries lookups found.
    pub fn forget_hits(&mut self) {
        self.tables.iter_mut().for_each(TableState::forget_hits);
    }

    fn state(&mut self, table: Table, key: &[u8]) -> Result<&mut TableState, What> {
        match self.tables.get_mut(table.index()) {
            Some(state) if key.len() == state.data.key_size as usize => Ok(state),
            _ => Err(What::NoSuchTable { table }),
        }
    }

    fn control(&mut self, table: Table, key: &[u8]) -> Result<&mut TableState, ControlError> {
        let state = self.tables.get_mut(table.index()).ok_or(ControlError::NoTable(table))?;
        let expected = state.data.key_size as usize;
        if key.len() == expected { Ok(state) } else { Err(state.wrong_size("key", expected, key.len())) }
    }

    pub(crate) fn value_slice(&self, address: u64, len: usize) -> Result<&[u8], What> {
        let table = entry_table(address);
        self.tables.get(table.index()).ok_or(What::NoSuchTable { table })?.value_slice(address, len)
    }

    pub(crate) fn value_slice_mut(&mut self, address: u64, len: usize) -> Result<&mut [u8], What> {
        let table = entry_table(address);
        self.tables.get_mut(table.index()).ok_or(What::NoSuchTable { table })?.value_slice_mut(address, len)
    }
}

/// Bytes of the flat memory that a table's values may take.
fn footprint(data: &TableData, cpus: u32) -> Result<u64, SetupError> {
    if data.kind == TableKind::Opaque {
        return Ok(0);
    }
    let copies = if data.per_cpu { u64::from(cpus) } else { 1 };
    let slots = u64::from(data.max_entries) + u64::from(keyed::SPARE_SLOTS);
    let bytes = slots.saturating_mul(values::stride(data.value_size)).saturating_mul(copies);
    if bytes > MAX_TABLE_BYTES {
        let what = format!("the values of table `{}`", data.name);
        return Err(SetupError::TooLarge { what, bytes, limit: MAX_TABLE_BYTES });
    }
    Ok(bytes)
}

fn outcome(result: Result<(), i64>) -> i64 {
    result.map_or_else(|errno| -errno, |()| 0)
}
