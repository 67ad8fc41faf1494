//! Artifacts: digests, fetching, verifying, storing, unpacking. It opens archives; nothing else does.
