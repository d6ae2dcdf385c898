//! `runnel inspect`: what a program's tables are, how it uses them, and what the specializer could do with them.
//!
//! Works on the file alone, without privilege and without asking a kernel: CO-RE relocations are not applied, and other
//! holders of a map are not seen. `rows` finds the facts, `outlook` judges what they allow, `text` prints them.

mod outlook;
mod rows;
mod text;

use std::path::Path;

use runnel_bpf::maps_json::MapContents;
use runnel_bpf::object::{Object, ObjectError, Program};

use super::contents;
use crate::cli::InspectArgs;
use crate::failure::{self, Failure, Result};
use crate::output::Output;

/// Shows the programs of an object.
///
/// # Errors
/// The object or the contents of the maps cannot be read, or there is no such program.
pub fn execute(args: &InspectArgs, output: &Output) -> Result<()> {
    let object = read_object(&args.object)?;
    let contents = args.maps.as_deref().map(|path| read_contents(path, &object)).transpose()?;
    let programs = chosen(args, &object)?;
    let rows: Vec<rows::ProgramRow> =
        programs.into_iter().map(|program| rows::of(&object, program, contents.as_ref())).collect();
    for (index, row) in rows.iter().enumerate() {
        if index > 0 {
            output.text("")?;
        }
        text::print(output, row)?;
    }
    output.report(&rows)
}

fn read_object(path: &Path) -> Result<Object> {
    let bytes = std::fs::read(path).map_err(|e| failure::unreadable_object(path, e))?;
    Object::parse(&bytes).map_err(|error| {
        let failure = Failure::new(format!("cannot read the object `{}`", path.display()));
        let advice = match &error {
            ObjectError::Truncated { .. } | ObjectError::Malformed { .. } | ObjectError::Btf(_) => {
                Some("make it again: it was not written to its end, or has been damaged since")
            }
            // The others say themselves what to give instead.
            _ => None,
        };
        let failure = failure.because(error);
        match advice {
            Some(advice) => failure.advise(advice),
            None => failure,
        }
    })
}

fn read_contents(path: &Path, object: &Object) -> Result<MapContents> {
    let contents = contents::read(path)?;
    let specs: Vec<_> = object.maps.iter().map(|map| map.spec.clone()).collect();
    contents.check(&specs).map_err(|e| contents::unusable(path).because(e))?;
    Ok(contents)
}

/// The program that was asked for, or all of them.
fn chosen<'a>(args: &InspectArgs, object: &'a Object) -> Result<Vec<&'a Program>> {
    let path = &args.object;
    let Some(wanted) = &args.prog else {
        if object.programs.is_empty() {
            return Err(Failure::new(format!("the object `{}` has no programs", path.display()))
                .advise("mark the entry function with SEC(\"xdp\")"));
        }
        return Ok(object.programs.iter().collect());
    };
    let names = || object.programs.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    let found = object.program(wanted).ok_or_else(|| failure::no_such_program(path, wanted, &names()))?;
    Ok(vec![found])
}
