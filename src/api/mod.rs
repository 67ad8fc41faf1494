//! Custom resources as plain data: fields, defaults, schemas and names. This module uses neither a client nor a clock,
//! and depends on no reconciler.

pub mod auto;
pub mod bounds;
pub mod cli_options;
pub mod columns;
pub mod conditions;
pub mod definitions;
pub mod duration;
pub mod names;
pub mod output_keys;
pub mod phase_times;
pub mod pulumi;
pub mod resolve;
pub mod schema;
pub mod template_schema;
pub mod tolerant;

#[cfg(test)]
mod tests {
    use super::auto::{Update, Workspace};
    use super::pulumi::Stack;

    /// The caches contain thousands of these objects, with most optional fields absent. An absent field uses its full
    /// size unless it is boxed.
    #[test]
    fn objects_with_absent_fields_are_small() {
        let sizes = [
            ("Stack", size_of::<Stack>(), 3072),
            ("Workspace", size_of::<Workspace>(), 1536),
            ("Update", size_of::<Update>(), 2048),
        ];
        for (kind, size, max) in sizes {
            assert!(size <= max, "{kind}: {size} bytes; box large optional fields that most objects lack");
        }
    }
}
