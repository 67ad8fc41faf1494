//! Sources that the workspace pod already contains. Each has a fixed digest, so that code that refers to an artifact by digest and
//! directory works for these sources as well.

use super::digest::Digest;

/// A source that is present in the pod and is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPod {
    /// A directory of the container image. Its path is relative to the root of the image, as paths in an archive are relative to
    /// its root.
    Image,
    /// The project directory, filled by init containers of the user.
    InitContainers,
}

impl InPod {
    const ALL: [InPod; 2] = [InPod::Image, InPod::InitContainers];

    /// Returns the in-pod source that has this digest, or `None` for the digest of an archive.
    pub fn of(digest: &Digest) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.digest() == *digest)
    }

    /// Returns the fixed digest of this source. It is the digest of a text that is not an archive, so no artifact that unpacks has
    /// it.
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
    fn in_pod_digests_are_stable_and_match_no_archive() {
        // Workspaces of existing installations contain these digests.
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
