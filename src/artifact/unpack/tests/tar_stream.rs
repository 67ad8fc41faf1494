use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{EntryType, Header};

/// A tar stream that a test builds header by header. Tar libraries cannot write the invalid entries that the tests
/// need.
#[derive(Default)]
pub(super) struct Tar(pub(super) Vec<u8>);

impl Tar {
    pub(super) fn entry(self, kind: u8, name: &[u8], link: &[u8], content: &[u8]) -> Self {
        self.header(kind, name, link, content.len(), 0o644).content(content)
    }

    pub(super) fn header(mut self, kind: u8, name: &[u8], link: &[u8], size: usize, mode: u32) -> Self {
        let mut header = Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
        header.set_entry_type(EntryType::new(kind));
        header.set_size(size as u64);
        header.set_mode(mode);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self
    }

    pub(super) fn content(mut self, content: &[u8]) -> Self {
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(b'0', name.as_bytes(), b"", content)
    }

    pub(super) fn directory(self, name: &str) -> Self {
        self.entry(b'5', name.as_bytes(), b"", b"")
    }

    pub(super) fn link(self, name: &str, target: &str) -> Self {
        self.entry(b'2', name.as_bytes(), target.as_bytes(), b"")
    }

    pub(super) fn pax(self, records: &[(&str, &str)]) -> Self {
        let mut data = String::new();
        for (key, value) in records {
            let rest = format!(" {key}={value}\n");
            let length = (1..).find(|length: &usize| length.to_string().len() + rest.len() == *length).unwrap();
            data.push_str(&format!("{length}{rest}"));
        }
        self.entry(b'x', b"pax", b"", data.as_bytes())
    }

    pub(super) fn end(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        gzip(&self.0)
    }
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}
