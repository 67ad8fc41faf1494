//! A malicious server that implements version 2 of the Git protocol over HTTP. The server sends packs that the program
//! `git` would never create.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use gix_hash::{Kind as Hash, ObjectId};
use gix_object::Kind;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A pack that a test assembles object by object.
pub struct Pack {
    bytes: Vec<u8>,
    objects: u32,
}

/// Offset and size of an object in the pack.
#[derive(Clone, Copy)]
pub struct Location {
    offset: usize,
    size: usize,
}

impl Pack {
    pub fn new() -> Self {
        Pack { bytes: b"PACK\0\0\0\x02\0\0\0\0".to_vec(), objects: 0 }
    }

    /// Adds an object that is not a delta.
    pub fn object(&mut self, kind: Kind, data: &[u8]) -> (ObjectId, Location) {
        let number = match kind {
            Kind::Commit => 1,
            Kind::Tree => 2,
            Kind::Blob => 3,
            Kind::Tag => 4,
        };
        let offset = self.start_entry(number, data.len());
        self.append_compressed(data);
        let id = gix_object::compute_hash(Hash::Sha1, kind, data).unwrap();
        (id, Location { offset, size: data.len() })
    }

    /// Adds a delta object that repeats its base `times` times.
    pub fn add_repetition(&mut self, base: Location, times: usize) -> Location {
        let mut delta = [varint(base.size), varint(base.size * times)].concat();
        for _ in 0..times {
            for from in (0..base.size).step_by(0xff_ffff) {
                let count = (base.size - from).min(0xff_ffff);
                delta.push(0xff);
                delta.extend(&u32::try_from(from).unwrap().to_le_bytes());
                delta.extend(&u32::try_from(count).unwrap().to_le_bytes()[..3]);
            }
        }
        self.add_delta(base, base.size * times, &delta)
    }

    /// Adds a delta object that appends one byte to its base.
    pub fn add_extension(&mut self, base: Location, byte: u8) -> Location {
        let mut delta = [varint(base.size), varint(base.size + 1)].concat();
        delta.push(0xff);
        delta.extend(&0_u32.to_le_bytes());
        delta.extend(&u32::try_from(base.size).unwrap().to_le_bytes()[..3]);
        delta.extend([1, byte]);
        self.add_delta(base, base.size + 1, &delta)
    }

    fn add_delta(&mut self, base: Location, size: usize, delta: &[u8]) -> Location {
        let offset = self.start_entry(6, delta.len());
        let mut distance = offset - base.offset;
        let mut groups = vec![u8::try_from(distance & 0x7f).unwrap()];
        distance >>= 7;
        while distance > 0 {
            distance -= 1;
            groups.push(u8::try_from(distance & 0x7f).unwrap() | 0x80);
            distance >>= 7;
        }
        self.bytes.extend(groups.into_iter().rev());
        self.append_compressed(delta);
        Location { offset, size }
    }

    /// Adds a commit that refers to a tree.
    pub fn commit(&mut self, tree: ObjectId) -> ObjectId {
        let author = "Evil <evil@example.com> 1700000000 +0000";
        self.object(Kind::Commit, format!("tree {tree}\nauthor {author}\ncommitter {author}\n\nharm\n").as_bytes()).0
    }

    /// Adds an entry header, and returns the offset of the entry.
    fn start_entry(&mut self, number: u8, size: usize) -> usize {
        let offset = self.bytes.len();
        self.objects += 1;
        let low = u8::try_from(size & 0x0f).unwrap();
        let mut rest = size >> 4;
        self.bytes.push((number << 4) | low | if rest > 0 { 0x80 } else { 0 });
        while rest > 0 {
            let low = u8::try_from(rest & 0x7f).unwrap();
            rest >>= 7;
            self.bytes.push(low | if rest > 0 { 0x80 } else { 0 });
        }
        offset
    }

    fn append_compressed(&mut self, data: &[u8]) {
        let mut encoder = ZlibEncoder::new(&mut self.bytes, Compression::fast());
        encoder.write_all(data).unwrap();
        encoder.finish().unwrap();
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.bytes[8..12].copy_from_slice(&self.objects.to_be_bytes());
        let mut hasher = gix_hash::hasher(Hash::Sha1);
        hasher.update(&self.bytes);
        self.bytes.extend(hasher.try_finalize().unwrap().as_slice());
        self.bytes
    }
}

fn varint(mut number: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = u8::try_from(number & 0x7f).unwrap();
        number >>= 7;
        bytes.push(low | if number > 0 { 0x80 } else { 0 });
        if number == 0 {
            return bytes;
        }
    }
}

/// Returns an entry of a tree.
pub fn tree_entry(mode: &str, name: &str, id: &ObjectId) -> Vec<u8> {
    [mode.as_bytes(), b" ", name.as_bytes(), b"\0", id.as_slice()].concat()
}

/// A malicious server, and its responses.
pub struct EvilServer {
    /// Response to `ls-refs`.
    pub references: Vec<u8>,
    pub pack: Vec<u8>,
    /// Names of the responses that the server sends at one byte per second: `advertisement`, `references` or `pack`.
    pub slow: &'static [&'static str],
}

impl EvilServer {
    /// Returns a server whose repository has only the branch `main`.
    pub fn with_main(commit: ObjectId, pack: Pack) -> Self {
        let references = [packet(format!("{commit} refs/heads/main\n").as_bytes()), b"0000".to_vec()].concat();
        EvilServer { references, pack: pack.finish(), slow: &[] }
    }

    /// Starts the server, and returns the URL.
    pub async fn start(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/app", listener.local_addr().unwrap());
        let shared = Arc::new(self);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move { shared.serve(stream).await });
            }
        });
        url
    }

    async fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let request = read_request(&mut stream).await?;
        let (what, body) = match request {
            request if request.starts_with("GET") => ("advertisement", advertisement()),
            request if request.contains("command=ls-refs") => ("references", self.references.clone()),
            _ => ("pack", packfile(&self.pack)),
        };
        let kind = if what == "advertisement" { "advertisement" } else { "result" };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-{kind}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.ok()?;
        if !self.slow.contains(&what) {
            return stream.write_all(&body).await.ok();
        }
        for byte in body {
            stream.write_all(&[byte]).await.ok()?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Some(())
    }
}

/// Reads a request's headers and body.
async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&read).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(text);
            }
        }
        let count = stream.read(&mut buffer).await.ok().filter(|count| *count > 0)?;
        read.extend(&buffer[..count]);
    }
}

fn packet(data: &[u8]) -> Vec<u8> {
    [format!("{:04x}", data.len() + 4).as_bytes(), data].concat()
}

fn advertisement() -> Vec<u8> {
    let lines = ["version 2\n", "agent=evil\n", "ls-refs\n", "fetch=shallow\n", "object-format=sha1\n"];
    let lines: Vec<u8> = lines.into_iter().flat_map(|line| packet(line.as_bytes())).collect();
    [packet(b"# service=git-upload-pack\n"), b"0000".to_vec(), lines, b"0000".to_vec()].concat()
}

fn packfile(pack: &[u8]) -> Vec<u8> {
    let mut body = packet(b"packfile\n");
    for chunk in pack.chunks(65_000) {
        body.extend(packet(&[&[1], chunk].concat()));
    }
    body.extend(b"0000");
    body
}

/// Returns a reference list of about `bytes` bytes. The last reference is `main`.
pub fn long_list(bytes: usize, main: ObjectId) -> Vec<u8> {
    let mut list = Vec::with_capacity(bytes + 100);
    let mut number = 0;
    while list.len() < bytes {
        list.extend(packet(format!("{main} refs/heads/a-branch-with-a-rather-long-name-{number}\n").as_bytes()));
        number += 1;
    }
    list.extend(packet(format!("{main} refs/heads/main\n").as_bytes()));
    list.extend(b"0000");
    list
}
