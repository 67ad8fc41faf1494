//! Reads extension headers: GNU long names and PAX records. An extension header describes the next entry.

use std::io::{ErrorKind, Read};

use tar::{Entry, EntryType};

use super::super::quote::{quoted, quoted_bytes};
use super::tree::UnpackError;

/// Maximum size of an extension header, in bytes. Extension headers in valid archives are much smaller.
const MAX_HEADER_SIZE: u64 = 256 * 1024;

/// The extension headers that precede an entry.
#[derive(Debug, Default)]
pub(super) struct Extended {
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    path: Option<Vec<u8>>,
    link_path: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
    /// Whether at least one extension header was read.
    pub(super) pending: bool,
}

/// The header of an entry combined with its extension headers.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) kind: EntryType,
    pub(super) size: u64,
    pub(super) executable: bool,
    /// Modification time in seconds since 1970, if the header contains a valid time.
    pub(super) modified: Option<u64>,
    pub(super) sparse: bool,
}

/// Returns whether an entry is an extension header. An extension header applies to the next entry or to the whole
/// archive.
pub(super) fn is_extension(kind: EntryType) -> bool {
    use EntryType::{GNULongLink, GNULongName, XGlobalHeader, XHeader};
    matches!(kind, GNULongName | GNULongLink | XHeader | XGlobalHeader)
}

impl Extended {
    /// Reads `entry` if it is an extension header. Otherwise, returns `false` without reading `entry`.
    pub(super) fn absorb<R: Read>(&mut self, entry: &mut Entry<'_, R>) -> Result<bool, UnpackError> {
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName => self.long_name = Some(without_nul(read(entry)?)),
            EntryType::GNULongLink => self.long_link = Some(without_nul(read(entry)?)),
            EntryType::XHeader => self.records(&read(entry)?)?,
            EntryType::XGlobalHeader => return check_global(&read(entry)?).map(|()| true),
            _ => return Ok(false),
        }
        self.pending = true;
        Ok(true)
    }

    fn records(&mut self, data: &[u8]) -> Result<(), UnpackError> {
        for (key, value) in parse_records(data)? {
            match key {
                b"path" => self.path = non_empty(value),
                b"linkpath" => self.link_path = non_empty(value),
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or_else(|| malformed("size is not a number"))?);
                }
                key if key.starts_with(b"GNU.sparse.") => self.sparse = true,
                _ => {}
            }
        }
        Ok(())
    }

    /// Combines the extension headers with the header of the entry.
    pub(super) fn into_member<R: Read>(self, entry: &Entry<'_, R>) -> Result<Member, UnpackError> {
        let header = entry.header();
        let own_name = || header.path_bytes().into_owned();
        let own_link = || header.link_name_bytes().map(|link| link.into_owned()).unwrap_or_default();
        let name = self.long_name.or(self.path).unwrap_or_else(own_name);
        // Rejects an entry that declares two different sizes. Tar readers disagree about which size takes precedence,
        // so such an archive could hide entries from some readers.
        if self.size.is_some_and(|size| size != entry.size()) {
            let cause = format!("entry {} has two sizes in its headers", quoted_bytes(&name));
            return Err(UnpackError::Broken { cause });
        }
        Ok(Member {
            name,
            link: self.long_link.or(self.link_path).unwrap_or_else(own_link),
            kind: header.entry_type(),
            size: entry.size(),
            executable: header.mode().is_ok_and(|mode| mode & 0o111 != 0),
            modified: header.mtime().ok(),
            sparse: self.sparse,
        })
    }
}

/// Returns an error if a global header changes the names or sizes of entries. Permits other records, such as the
/// comment that `git archive` writes.
fn check_global(data: &[u8]) -> Result<(), UnpackError> {
    let renames = |key: &[u8]| matches!(key, b"path" | b"linkpath" | b"size") || key.starts_with(b"GNU.sparse.");
    match parse_records(data)?.iter().find(|(key, _)| renames(key)) {
        Some((key, _)) => {
            Err(UnpackError::Broken { cause: format!("global PAX header must not set {}", quoted_bytes(key)) })
        }
        None => Ok(()),
    }
}

/// Parses PAX records. A record consists of its total length as a decimal number, a space, `key=value` and a newline.
fn parse_records(mut data: &[u8]) -> Result<Vec<Record<'_>>, UnpackError> {
    let mut records = Vec::new();
    while !data.is_empty() {
        let parsed = parse_record(data);
        let (record, rest) = parsed.ok_or_else(|| malformed("record must have the form length key=value"))?;
        records.push(record);
        data = rest;
    }
    Ok(records)
}

/// The key and the value of a PAX record.
type Record<'data> = (&'data [u8], &'data [u8]);

/// Returns the first record and the remaining data.
fn parse_record(data: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let space = data.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(data.get(..space)?).ok()?.parse().ok()?;
    let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some(((record.get(..equals)?, record.get(equals + 1..)?), data.get(length..)?))
}

fn read<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, UnpackError> {
    let size = entry.size();
    if size > MAX_HEADER_SIZE {
        return Err(UnpackError::HeaderTooLarge { size, limit: MAX_HEADER_SIZE });
    }
    let mut data = Vec::new();
    entry.read_to_end(&mut data).map_err(|cause| match cause.kind() {
        ErrorKind::UnexpectedEof => UnpackError::Truncated,
        _ => UnpackError::Broken { cause: quoted(&cause.to_string()) },
    })?;
    if u64::try_from(data.len()).is_ok_and(|length| length == size) { Ok(data) } else { Err(UnpackError::Truncated) }
}

fn without_nul(mut data: Vec<u8>) -> Vec<u8> {
    if data.last() == Some(&0) {
        data.pop();
    }
    data
}

fn non_empty(value: &[u8]) -> Option<Vec<u8>> {
    (!value.is_empty()).then(|| value.to_vec())
}

fn malformed(what: &str) -> UnpackError {
    UnpackError::Broken { cause: format!("malformed PAX header: {what}") }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn extension_records_are_split_by_their_length() {
        let data = b"9 path=a\n18 comment=a\nb=c \n";
        let records = parse_records(data).unwrap();
        assert_eq!(records, [(&b"path"[..], &b"a"[..]), (&b"comment"[..], &b"a\nb=c "[..])]);
        assert!(parse_records(b"").unwrap().is_empty());
    }

    #[test]
    fn malformed_extension_records_are_rejected() {
        let table: [&[u8]; 8] =
            [b"path=a\n", b"9 path=a", b"11 path=a\n", b"8 path=a\n", b"9 pathxa\n", b"0 \n", b"1 a=b\n", b"-1 a=b\n"];
        for data in table {
            let error = parse_records(data).unwrap_err().to_string();
            assert!(error.contains("malformed"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_extension_records_never_panics(data in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_records(&data);
        }
    }
}
