//! The text form, read back: one declaration, block head or instruction a line, `;` begins a comment.
//!
//! Numbers of blocks and values are kept as written, so that a printed program reads back as itself. What is
//! parsed is well-formed text, not yet a valid program: [`crate::verify`] judges that.

use cranelift_entity::{EntityRef, PrimaryMap};
use smallvec::SmallVec;
use thiserror::Error;

use crate::{
    BinaryOp, Block, BlockData, CalleeData, Cond, DataKind, DataObject, Effects, InstData, InstNode, Key,
    KeyPart, Program, Size, SlotData, TableData, TableKind, Target, Terminator, UnaryOp, Value, ValueDef,
    Width,
};

/// Text that is not a program.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("line {line}: {message}")]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: usize,
    /// What is wrong there.
    pub message: String,
}

/// Entity numbers beyond this are taken for a mistake rather than allocated.
const MAX_NUMBER: usize = 1 << 20;

/// A definition that no text has given yet.
const UNDEFINED: u32 = u32::MAX;

type Result<T> = std::result::Result<T, String>;

/// Reads a program from its text form.
///
/// # Errors
/// The first line that does not fit, with what was expected there.
pub fn parse_program(text: &str) -> std::result::Result<Program, ParseError> {
    let mut parser = Parser { program: Program::new(""), current: None, state: State::Before };
    let mut last = 0;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        let line = strip_comment(line);
        if line.trim().is_empty() {
            continue;
        }
        parser.line(line).map_err(|message| ParseError { line: index + 1, message })?;
    }
    parser.finish().map_err(|message| ParseError { line: last, message })?;
    Ok(parser.program)
}

/// The line up to a `;` that stands outside of quotes.
fn strip_comment(line: &str) -> &str {
    let mut quoted = false;
    for (i, c) in line.char_indices() {
        match c {
            '"' => quoted = !quoted,
            ';' if !quoted => return &line[..i],
            _ => {}
        }
    }
    line
}

#[derive(PartialEq)]
enum State {
    Before,
    Declarations,
    Body,
    Ended,
    After,
}

struct Parser {
    program: Program,
    current: Option<Block>,
    state: State,
}

/// Words and punctuation of one line.
struct Line<'a> {
    tokens: Vec<&'a str>,
    next: usize,
}

impl<'a> Line<'a> {
    fn new(text: &'a str) -> Result<Line<'a>> {
        let mut tokens = Vec::new();
        let mut rest = text.trim_start();
        while let Some(first) = rest.chars().next() {
            let len = if first == '"' {
                rest[1..].find('"').ok_or("a quoted name does not end")? + 2
            } else if first.is_ascii_alphanumeric() || first == '_' {
                rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'))
                    .unwrap_or(rest.len())
            } else {
                first.len_utf8()
            };
            tokens.push(&rest[..len]);
            rest = rest[len..].trim_start();
        }
        Ok(Line { tokens, next: 0 })
    }

    fn peek(&self) -> Option<&'a str> {
        self.tokens.get(self.next).copied()
    }

    fn word(&mut self) -> Result<&'a str> {
        let token = self.peek().ok_or("the line ends too early")?;
        self.next += 1;
        Ok(token)
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.peek() == Some(token);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        let found = self.word()?;
        if found == token { Ok(()) } else { Err(format!("expected `{token}`, found `{found}`")) }
    }

    fn name(&mut self) -> Result<String> {
        let token = self.word()?;
        match token.strip_prefix('"').and_then(|t| t.strip_suffix('"')) {
            Some(name) => Ok(name.to_string()),
            None => Err(format!("expected a quoted name, found `{token}`")),
        }
    }

    fn number(&mut self) -> Result<u64> {
        let token = self.word()?;
        let parsed = match token.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => token.parse(),
        };
        parsed.map_err(|_| format!("expected a number, found `{token}`"))
    }

    fn small<T: TryFrom<u64>>(&mut self) -> Result<T> {
        let number = self.number()?;
        T::try_from(number).map_err(|_| format!("{number} is too large here"))
    }

    fn entity<T: EntityRef>(&mut self, prefix: &str) -> Result<T> {
        let token = self.word()?;
        let number = token.strip_prefix(prefix).and_then(|n| n.parse::<usize>().ok());
        match number {
            Some(n) if n < MAX_NUMBER => Ok(T::new(n)),
            _ => Err(format!("expected `{prefix}` and a number, found `{token}`")),
        }
    }

    /// A signed distance: `+8`, `-8` or nothing.
    fn offset(&mut self) -> Result<i64> {
        let sign = if self.eat("+") {
            1
        } else if self.eat("-") {
            -1
        } else {
            return Ok(0);
        };
        let magnitude: u32 = self.small()?;
        Ok(sign * i64::from(magnitude))
    }

    fn end(&self) -> Result<()> {
        match self.peek() {
            None => Ok(()),
            Some(token) => Err(format!("expected the end of the line, found `{token}`")),
        }
    }
}

fn size_from(text: &str) -> Result<Size> {
    Size::ALL
        .into_iter()
        .find(|s| s.bits().to_string() == text)
        .ok_or_else(|| format!("`{text}` is no access size; there are 8, 16, 32 and 64"))
}

fn width_from(text: &str) -> Result<Width> {
    match text {
        "32" => Ok(Width::W32),
        "64" => Ok(Width::W64),
        _ => Err(format!("`{text}` is no width; there are 32 and 64")),
    }
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return Err("bytes are two hexadecimal digits each".into());
    }
    (0..text.len())
        .step_by(2)
        .map(|i| {
            u8::from_str_radix(&text[i..i + 2], 16).map_err(|_| format!("`{}` is no byte", &text[i..i + 2]))
        })
        .collect()
}

impl Parser {
    fn line(&mut self, text: &str) -> Result<()> {
        let mut line = Line::new(text)?;
        match self.state {
            State::Before => {
                line.expect("program")?;
                self.program.name = line.name()?;
                line.expect("{")?;
                self.state = State::Declarations;
            }
            State::After => return Err("something stands after the program's end".into()),
            _ if line.peek() == Some("}") => {
                line.word()?;
                if self.state == State::Body {
                    return Err("the last block has no terminator".into());
                }
                self.state = State::After;
            }
            _ => {
                let first = line.peek().unwrap_or_default();
                if first.starts_with("block") {
                    self.block_head(&mut line)?;
                } else if self.state == State::Declarations {
                    self.declaration(&mut line)?;
                } else {
                    self.instruction(&mut line)?;
                }
            }
        }
        line.end()
    }

    fn finish(&self) -> Result<()> {
        if self.state != State::After {
            return Err("the text ends before the program does (`}` is missing)".into());
        }
        if self.program.layout.is_empty() {
            return Err("the program has no block".into());
        }
        Ok(())
    }

    fn declaration(&mut self, line: &mut Line<'_>) -> Result<()> {
        fn next<K: EntityRef, V>(map: &PrimaryMap<K, V>, key: K) -> Result<()> {
            if map.next_key() == key { Ok(()) } else { Err(format!("expected number {} here", map.len())) }
        }
        match line.word()? {
            "table" => {
                next(&self.program.tables, line.entity("t")?)?;
                let table = table(line)?;
                self.program.tables.push(table);
            }
            "data" => {
                next(&self.program.data, line.entity("d")?)?;
                let name = line.name()?;
                let kind = match line.word()? {
                    "const" => DataKind::Const,
                    "live" => DataKind::Live,
                    other => return Err(format!("expected `const` or `live`, found `{other}`")),
                };
                let stride = if line.eat("stride") { line.small()? } else { 0 };
                line.expect("=")?;
                let bytes = unhex(line.peek().unwrap_or_default())?;
                if line.peek().is_some() {
                    line.word()?;
                }
                self.program.data.push(DataObject { name, kind, stride, bytes });
            }
            "slot" => {
                next(&self.program.slots, line.entity("s")?)?;
                self.program.slots.push(SlotData { size: line.small()? });
            }
            "callee" => {
                next(&self.program.callees, line.entity("c")?)?;
                let name = line.name()?;
                line.expect("number")?;
                let number = line.small()?;
                line.expect("args")?;
                let arity = line.small()?;
                let mut effects = Effects::empty();
                while line.peek().is_some() {
                    let word = line.word()?;
                    effects |= Effects::from_name(&word.to_uppercase())
                        .ok_or_else(|| format!("`{word}` is no effect"))?;
                }
                self.program.callees.push(CalleeData { name, number, arity, effects });
            }
            other => {
                return Err(format!(
                    "expected `table`, `data`, `slot`, `callee` or a block, found `{other}`"
                ));
            }
        }
        Ok(())
    }

    fn block_head(&mut self, line: &mut Line<'_>) -> Result<()> {
        if self.state == State::Body {
            return Err("the block before this one has no terminator".into());
        }
        let block: Block = line.entity("block")?;
        self.mention_block(block);
        if self.program.layout.contains(&block) {
            return Err(format!("{block} stands twice"));
        }
        self.program.layout.push(block);
        if line.eat("(") {
            loop {
                let value: Value = line.entity("v")?;
                let index = self.program.blocks[block].params.len() as u32;
                self.define(value, ValueDef::Param(block, index))?;
                self.program.blocks[block].params.push(value);
                if !line.eat(",") {
                    break;
                }
            }
            line.expect(")")?;
        }
        line.expect(":")?;
        self.current = Some(block);
        self.state = State::Body;
        Ok(())
    }

    fn mention_block(&mut self, block: Block) {
        while self.program.blocks.len() <= block.index() {
            self.program.new_block();
        }
    }

    fn mention_value(&mut self, value: Value) {
        while self.program.values.len() <= value.index() {
            self.program.values.push(ValueDef::Param(Block::new(0), UNDEFINED));
        }
    }

    fn define(&mut self, value: Value, def: ValueDef) -> Result<()> {
        self.mention_value(value);
        if self.program.values[value] != ValueDef::Param(Block::new(0), UNDEFINED) {
            return Err(format!("{value} is defined twice"));
        }
        self.program.values[value] = def;
        Ok(())
    }

    fn value(&mut self, line: &mut Line<'_>) -> Result<Value> {
        let value = line.entity("v")?;
        self.mention_value(value);
        Ok(value)
    }

    fn values<A: smallvec::Array<Item = Value>>(&mut self, line: &mut Line<'_>) -> Result<SmallVec<A>> {
        let mut values = SmallVec::new();
        if line.eat(")") {
            return Ok(values);
        }
        loop {
            values.push(self.value(line)?);
            if !line.eat(",") {
                break;
            }
        }
        line.expect(")")?;
        Ok(values)
    }

    fn target(&mut self, line: &mut Line<'_>) -> Result<Target> {
        let block = line.entity("block")?;
        self.mention_block(block);
        let args = if line.eat("(") { self.values(line)? } else { SmallVec::new() };
        Ok(Target { block, args })
    }

    fn key(&mut self, line: &mut Line<'_>) -> Result<Key> {
        let mut key = Key::new();
        line.expect("[")?;
        if line.eat("]") {
            return Ok(key);
        }
        loop {
            let offset = line.small()?;
            line.expect(":")?;
            let size = size_from(line.word()?)?;
            key.push(KeyPart { offset, size, value: self.value(line)? });
            if !line.eat(",") {
                break;
            }
        }
        line.expect("]")?;
        Ok(key)
    }

    fn instruction(&mut self, line: &mut Line<'_>) -> Result<()> {
        if self.state != State::Body {
            return Err("an instruction stands after the block's terminator".into());
        }
        let Some(block) = self.current else { return Err("an instruction stands outside of a block".into()) };
        let result = match (line.peek(), line.tokens.get(line.next + 1)) {
            (Some(_), Some(&"=")) => {
                let value: Value = line.entity("v")?;
                line.expect("=")?;
                Some(value)
            }
            _ => None,
        };
        let mnemonic = line.word()?;
        if let Some(terminator) = self.terminator(mnemonic, line)? {
            if result.is_some() {
                return Err("a terminator has no result".into());
            }
            self.program.blocks[block].terminator = terminator;
            self.state = State::Ended;
            return Ok(());
        }
        let data = self.operation(mnemonic, line)?;
        let origin = if line.eat("@") { Some(line.small()?) } else { None };
        match (data.has_result(), result) {
            (true, None) => return Err(format!("`{mnemonic}` gives a value: write `v1 = …`")),
            (false, Some(_)) => return Err(format!("`{mnemonic}` gives no value")),
            _ => {}
        }
        let inst = self.program.insts.next_key();
        if let Some(value) = result {
            self.define(value, ValueDef::Inst(inst))?;
        }
        self.program.insts.push(InstNode { data, result, origin });
        let node: &mut BlockData = &mut self.program.blocks[block];
        node.insts.push(inst);
        Ok(())
    }

    fn terminator(&mut self, mnemonic: &str, line: &mut Line<'_>) -> Result<Option<Terminator>> {
        let mut parts = mnemonic.split('.');
        Ok(Some(match parts.next().unwrap_or_default() {
            "jump" => Terminator::Jump(self.target(line)?),
            "return" => Terminator::Return(self.value(line)?),
            "deopt" => Terminator::Deopt(self.value(line)?),
            "branch" => {
                let cond = parts.next().unwrap_or_default();
                let cond = Cond::from_text(cond).ok_or_else(|| format!("`{cond}` is no condition"))?;
                let width = width_from(parts.next().unwrap_or_default())?;
                let lhs = self.value(line)?;
                line.expect(",")?;
                let rhs = self.value(line)?;
                line.expect(",")?;
                let then = self.target(line)?;
                line.expect(",")?;
                let other = self.target(line)?;
                Terminator::Branch { cond, width, lhs, rhs, then, other }
            }
            _ => return Ok(None),
        }))
    }

    fn operation(&mut self, mnemonic: &str, line: &mut Line<'_>) -> Result<InstData> {
        let (name, suffix) = mnemonic.split_once('.').unwrap_or((mnemonic, ""));
        if let Some(op) = BinaryOp::from_text(name) {
            let width = width_from(suffix)?;
            let lhs = self.value(line)?;
            line.expect(",")?;
            return Ok(InstData::Binary { op, width, lhs, rhs: self.value(line)? });
        }
        if let Some(op) = UnaryOp::from_text(mnemonic) {
            return Ok(InstData::Unary { op, arg: self.value(line)? });
        }
        Ok(match name {
            "const" => InstData::Const(line.number()?),
            "load" | "ctx_load" | "store" | "atomic_add" => {
                let size = size_from(suffix)?;
                let ptr = self.value(line)?;
                let offset = i32::try_from(line.offset()?).map_err(|_| "the offset is too large")?;
                match name {
                    "load" => InstData::Load { size, ptr, offset },
                    "ctx_load" => InstData::CtxLoad { size, ctx: ptr, offset },
                    _ => {
                        line.expect(",")?;
                        let value = self.value(line)?;
                        if name == "store" {
                            InstData::Store { size, ptr, offset, value }
                        } else {
                            InstData::AtomicAdd { size, ptr, offset, value }
                        }
                    }
                }
            }
            "slot_addr" => InstData::SlotAddr { slot: line.entity("s")?, offset: unsigned(line)? },
            "data_addr" => InstData::DataAddr { data: line.entity("d")?, offset: unsigned(line)? },
            "table_ref" => InstData::TableRef(line.entity("t")?),
            "table_value" => InstData::TableValue { table: line.entity("t")?, offset: unsigned(line)? },
            "lookup" => InstData::Lookup { table: line.entity("t")?, key: self.key(line)? },
            "delete" => InstData::Delete { table: line.entity("t")?, key: self.key(line)? },
            "update" => {
                let table = line.entity("t")?;
                let key = self.key(line)?;
                line.expect(",")?;
                let value = self.value(line)?;
                line.expect(",")?;
                InstData::Update { table, key, value, flags: self.value(line)? }
            }
            "call" => {
                let callee = line.entity("c")?;
                line.expect("(")?;
                InstData::Call { callee, args: self.values(line)? }
            }
            _ => return Err(format!("`{mnemonic}` is no operation")),
        })
    }
}

fn unsigned(line: &mut Line<'_>) -> Result<u32> {
    u32::try_from(line.offset()?).map_err(|_| "the offset must not be negative".into())
}

fn table(line: &mut Line<'_>) -> Result<TableData> {
    let name = line.name()?;
    let kind = match line.word()? {
        "exact" => TableKind::Exact,
        "prefix" => TableKind::Prefix,
        "index" => TableKind::Index,
        "opaque" => TableKind::Opaque,
        other => return Err(format!("`{other}` is no kind of table")),
    };
    line.expect("key")?;
    let key_size = line.small()?;
    line.expect("value")?;
    let value_size = line.small()?;
    line.expect("entries")?;
    let max_entries = line.small()?;
    let mut table =
        TableData { name, kind, key_size, value_size, max_entries, per_cpu: false, keeps_recency: false };
    while let Some(flag) = line.peek() {
        match flag {
            "per_cpu" => table.per_cpu = true,
            "keeps_recency" => table.keeps_recency = true,
            other => return Err(format!("`{other}` is no property of a table")),
        }
        line.word()?;
    }
    Ok(table)
}
