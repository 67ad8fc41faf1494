//! Turns a reference to a source into an artifact, or says why not yet.
