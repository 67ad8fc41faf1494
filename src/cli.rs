//! Flags, named as Flux names them.
