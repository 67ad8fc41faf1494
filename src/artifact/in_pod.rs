//! Sources that are in the pod already: artifacts without bytes. Each has a fixed digest, so that whatever names an artifact by its
//! digest and directory names these as well.

use super::digest::Digest;

/// A source that nobody has to bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPod {
    /// A directory of the image; from the image's root, so that it is as relative as in an archive.
    Image,
    /// What the user's init containers have put at the project's place.
    InitContainers,
}

impl InPod {
    const ALL: [InPod; 2] = [InPod::Image, InPod::InitContainers];

    /// The source behind a digest; none for the digest of an archive.
    pub fn of(digest: &Digest) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.digest() == *digest)
    }

    /// That of a text which is no archive: no bytes that could be unpacked have it.
    pub fn digest(self) -> Digest {
        Digest::of(match self {
            InPod::Image => b"pulumi-controller: the source is in the image",
            InPod::InitContainers => b"pulumi-controller: the source comes from the init containers",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_digests_never_change_and_are_those_of_no_archive() {
        // The Workspaces of all users hold them.
        let image = "sha256:54a0b53c31a856bb28d128223bf9817ad2c81036ced1456729c4650f947c1cf4";
        let init_containers = "sha256:29fcd7b6689f9ecb999a9ce953f1ac1e71222db252ae7a1559161b80c59a9930";
        assert_eq!(InPod::Image.digest().to_string(), image);
        assert_eq!(InPod::InitContainers.digest().to_string(), init_containers);
        for source in InPod::ALL {
            assert_eq!(InPod::of(&source.digest()), Some(source));
        }
        assert_eq!(InPod::of(&Digest::of(b"an archive")), None);
    }
}
