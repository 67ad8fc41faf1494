//! The engine's edge: arguments, settings documents, the event log, exit codes, locks, project files. Pure, no process.
