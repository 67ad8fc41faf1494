//! Inside the workspace pod: PID 1, the RPC service, sources, install, operations and their journal.
