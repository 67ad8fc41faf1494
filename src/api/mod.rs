//! Custom resources as plain data: fields, defaults, schemas and names. This module uses neither a client nor a clock,
//! and depends on no reconciler.

pub mod auto;
pub mod bounds;
pub mod columns;
pub mod conditions;
pub mod definitions;
pub mod duration;
pub mod names;
pub mod phase_times;
pub mod pulumi;
pub mod resolve;
pub mod schema;
pub mod template_schema;
