//! Stack: resolves the source, keeps the Workspace, starts Updates, records their results.
