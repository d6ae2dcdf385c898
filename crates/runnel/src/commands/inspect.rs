//! `runnel inspect`: what a program's tables are, how it uses them, and what the specializer could do with them.
//!
//! Works on the file alone, without privilege and without asking a kernel: CO-RE relocations are not applied, and other
//! holders of a map are not seen. `rows` finds the facts, `outlook` judges what they allow, `text` prints them.

mod outlook;
mod rows;
mod text;

use std::path::Path;

use runnel_bpf::maps_json::MapContents;
use runnel_bpf::object::{Object, Program};

use crate::cli::InspectArgs;
use crate::failure::{Failure, Result};
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
    let failure = |why: Box<dyn std::error::Error + Send + Sync>| {
        Failure::new(format!("cannot read the object `{}`", path.display())).because(why)
    };
    let advice = "give an object file made with `clang -O2 -g -target bpf -c`";
    let bytes = std::fs::read(path).map_err(|e| failure(e.into()).advise(advice))?;
    Object::parse(&bytes).map_err(|e| failure(e.into()))
}

fn read_contents(path: &Path, object: &Object) -> Result<MapContents> {
    let failure = |why: Box<dyn std::error::Error + Send + Sync>| {
        Failure::new(format!("cannot read the contents of the maps in `{}`", path.display()))
            .because(why)
            .advise("give what `bpftool -j map dump` prints, one array under each map's name: {\"routes\": […], …}")
    };
    let bytes = std::fs::read(path).map_err(|e| failure(e.into()))?;
    let contents = MapContents::parse(&bytes).map_err(|e| failure(e.into()))?;
    let specs: Vec<_> = object.maps.iter().map(|map| map.spec.clone()).collect();
    contents.check(&specs).map_err(|e| failure(e.into()))?;
    Ok(contents)
}

/// The program that was asked for, or all of them.
fn chosen<'a>(args: &InspectArgs, object: &'a Object) -> Result<Vec<&'a Program>> {
    let path = args.object.display();
    if object.programs.is_empty() {
        return Err(Failure::new(format!("the object `{path}` has no programs"))
            .advise("mark the entry function with SEC(\"xdp\")"));
    }
    let Some(wanted) = &args.prog else { return Ok(object.programs.iter().collect()) };
    let found = object.program(wanted).ok_or_else(|| {
        let names: Vec<String> = object.programs.iter().map(|p| format!("`{}`", p.name)).collect();
        Failure::new(format!("the object `{path}` has no program `{wanted}`"))
            .advise(format!("name one of those it has with `--prog`: {}", names.join(", ")))
    })?;
    Ok(vec![found])
}
