//! What libbpf does not tell about an object file: whether it is one at all, in words, and its license.

use std::path::Path;

use object::{Architecture, Object as _, ObjectSection as _};

use super::ObjectError;

/// Checks that the bytes are a BPF object of this machine's byte order and gives its license (empty if none).
pub(super) fn license(path: &Path, bytes: &[u8]) -> Result<String, ObjectError> {
    let not_bpf = |why: &str| ObjectError::NotBpf { path: path.into(), why: why.to_owned() };
    if !bytes.starts_with(b"\x7fELF") {
        return Err(ObjectError::NotElf { path: path.into() });
    }
    let file = object::File::parse(bytes).map_err(|e| not_bpf(&format!("damaged ELF file ({e})")))?;
    if file.architecture() != Architecture::Bpf {
        return Err(not_bpf(&format!("it is an ELF file for {:?}", file.architecture())));
    }
    if file.is_little_endian() != cfg!(target_endian = "little") {
        return Err(not_bpf("it is for machines of the other byte order; compile it with -target bpf"));
    }
    let Some(section) = file.section_by_name("license") else { return Ok(String::new()) };
    let data = section.data().map_err(|e| not_bpf(&format!("damaged license section ({e})")))?;
    let text = data.split(|b| *b == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}
