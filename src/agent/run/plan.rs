//! Saves the plan of a preview, and makes a later run follow this plan. The plan of an `up` is a file that the CLI
//! writes. The CLI cannot save the plan of a destroy, so this plan is the sorted list of the URNs to delete.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::de::IgnoredAny;

use super::attempt::Attempt;
use super::context::{Run, RunError};
use super::operation_result::OperationResult;
use super::plan_error::{MAX_PLAN, PlanError};
use super::recovery::Exported;
use crate::agent::durable;
use crate::pulumi::arguments::OperationKind;
use crate::pulumi::failure::plan;
use crate::pulumi::state;

/// Maximum size of a compressed plan in bytes. The controller stores the plan in a Secret, whose size limit is 1 MiB.
pub(super) const MAX_COMPRESSED: usize = 700 * 1024;
/// Maximum number of URNs per list in a message.
const MAX_LISTED: usize = 5;

impl Run {
    /// Writes the plan file for the CLI. For a destroy, compares the resources to delete with the plan. If the agent
    /// must not start the operation, the function returns its result.
    pub(super) async fn prepare_plan(&self) -> Result<Option<OperationResult>, RunError> {
        let compressed = self.parameters.plan();
        if self.parameters.saves_cli_plan() {
            create_private(&self.record.plan_file()).map_err(|error| PlanError::File { action: "create", error })?;
        }
        if compressed.is_empty() {
            return Ok(None);
        }
        let (compressed, file) = (compressed.to_vec(), self.record.plan_file());
        if self.parameters.kind == OperationKind::Destroy {
            let planned = blocking(move || planned_deletions(&decompress(&compressed)?)).await?;
            return self.compare_deletions(&planned).await;
        }
        blocking(move || write_plan(&file, &decompress(&compressed)?)).await?;
        Ok(None)
    }

    /// Previews the destroy. If the resources to delete differ from the planned deletions, the function returns the
    /// result of the operation.
    async fn compare_deletions(&self, planned: &BTreeSet<String>) -> Result<Option<OperationResult>, RunError> {
        let attempt = self.unlocked_attempt(OperationKind::PreviewDestroy).await?;
        if attempt.is_stack_missing() {
            // The destroy itself reports the missing stack.
            return Ok(None);
        }
        if !attempt.is_successful() {
            return Ok(Some(self.conclude_check(attempt).await));
        }
        let found = attempt.summary.planned().deletions().ok_or(PlanError::TooManyDeletions)?;
        let differences = differences(planned, found);
        Ok(differences.map(|differences| {
            OperationResult::plan_violated(format!(
                "the resources to delete differ from the plan; nothing was destroyed: {differences}\n\
                 (the controller makes a new plan)"
            ))
            .with_last_output(&attempt.stdout, &attempt.stderr)
        }))
    }

    /// Describes the resources whose deletion deviates from the plan, because the CLI error does not contain the URNs
    /// of these resources.
    pub(super) async fn unplanned_deletions(&self, attempt: &Attempt) -> Option<String> {
        if !plan::has_unnamed_deletion(&attempt.summary) || self.is_cancelled() {
            return None;
        }
        let resources = self.exported_resources().await;
        self.remove_exported();
        let file = self.record.plan_file();
        let planned = blocking(move || {
            let file = File::open(&file).map_err(|error| PlanError::File { action: "read", error })?;
            plan::deletions(BufReader::new(file))
                .map_err(|error| PlanError::File { action: "read", error: error.into() })
        });
        let (Some(resources), Ok(planned)) = (resources, planned.await) else {
            tracing::warn!(
                operation = self.record.request().id,
                "failed to find the deletions that deviate from the plan"
            );
            return None;
        };
        let mut urns = resources;
        urns.retain(|urn| !attempt.summary.may_have_seen(urn) && !planned.contains(urn));
        urns.sort();
        urns.dedup();
        plan::describe_candidates(&urns)
    }

    /// Returns the URNs of all resources in the state.
    async fn exported_resources(&self) -> Option<Vec<String>> {
        let Ok(Exported::Written) = self.export("find the deletions that deviate from the plan").await else {
            return None;
        };
        let file = self.record.state_file();
        let read = move || state::resources(BufReader::new(File::open(file).ok()?)).ok();
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }

    /// Returns the compressed plan of a successful preview. The plan is empty if the controller has not requested a
    /// plan.
    pub(super) async fn saved_plan(&self, attempt: &Attempt) -> Result<Vec<u8>, PlanError> {
        if !self.parameters.saves_plan() {
            return Ok(Vec::new());
        }
        if self.parameters.saves_cli_plan() {
            let file = self.record.plan_file();
            return blocking(move || compress(&read_plan(&file)?)).await;
        }
        let deletions = attempt.summary.planned().deletions().ok_or(PlanError::TooManyDeletions)?;
        let list =
            serde_json::to_vec(deletions).map_err(|error| PlanError::File { action: "write", error: error.into() })?;
        blocking(move || compress(&list)).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PlanError> + Send + 'static,
) -> Result<T, PlanError> {
    let failed = |error| PlanError::File { action: "process", error: io::Error::other(error) };
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

/// Creates an empty file that only its owner can read. The CLI keeps the permissions of this file when it writes the
/// plan.
fn create_private(path: &Path) -> io::Result<()> {
    durable::remove(path)?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map(drop)
}

/// Writes the plan of an `up` for the CLI.
fn write_plan(path: &Path, plan: &[u8]) -> Result<(), PlanError> {
    let malformed = |error| PlanError::Malformed { what: "not a JSON object", error };
    let _: BTreeMap<String, IgnoredAny> = serde_json::from_slice(plan).map_err(malformed)?;
    durable::write_atomically(path, plan).map_err(|error| PlanError::File { action: "write", error })
}

fn read_plan(path: &Path) -> Result<Vec<u8>, PlanError> {
    let failed = |error| PlanError::File { action: "read", error };
    let file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    if size > MAX_PLAN {
        return Err(PlanError::TooLarge { what: "plan", size, limit: MAX_PLAN });
    }
    if size == 0 {
        return Err(failed(io::Error::new(io::ErrorKind::InvalidData, "the CLI has written no plan")));
    }
    let mut plan = Vec::new();
    file.take(MAX_PLAN).read_to_end(&mut plan).map_err(failed)?;
    Ok(plan)
}

/// Compresses a plan. The result depends only on the plan, and not on the time at which the agent compresses the plan.
fn compress(plan: &[u8]) -> Result<Vec<u8>, PlanError> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let compressed = encoder.write_all(plan).and_then(|()| encoder.finish());
    let compressed = compressed.map_err(|error| PlanError::File { action: "compress", error })?;
    if compressed.len() > MAX_COMPRESSED {
        let (size, limit) = (compressed.len() as u64, MAX_COMPRESSED as u64);
        return Err(PlanError::TooLarge { what: "compressed plan", size, limit });
    }
    Ok(compressed)
}

fn decompress(compressed: &[u8]) -> Result<Vec<u8>, PlanError> {
    let mut plan = Vec::new();
    GzDecoder::new(compressed).take(MAX_PLAN + 1).read_to_end(&mut plan).map_err(PlanError::Compressed)?;
    if plan.len() as u64 > MAX_PLAN {
        return Err(PlanError::Bomb);
    }
    Ok(plan)
}

/// Parses the plan of a destroy.
fn planned_deletions(plan: &[u8]) -> Result<BTreeSet<String>, PlanError> {
    serde_json::from_slice(plan).map_err(|error| PlanError::Malformed { what: "not a list of URNs", error })
}

/// Describes the differences between the planned and the actual deletions. Returns `None` if there are no differences.
fn differences(planned: &BTreeSet<String>, found: &BTreeSet<String>) -> Option<String> {
    let lists = [("not in the plan", found.difference(planned)), ("only in the plan", planned.difference(found))];
    let parts: Vec<String> =
        lists.into_iter().filter_map(|(what, urns)| listed(what, &urns.collect::<Vec<_>>())).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn listed(what: &str, urns: &[&String]) -> Option<String> {
    let named = urns.iter().take(MAX_LISTED).map(|urn| urn.as_str()).collect::<Vec<_>>().join(", ");
    let more = urns.len().saturating_sub(MAX_LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (!urns.is_empty()).then(|| format!("{what}: {named}{more}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(urns: &[&str]) -> BTreeSet<String> {
        urns.iter().map(|urn| (*urn).to_owned()).collect()
    }

    #[test]
    fn a_compressed_plan_depends_only_on_the_plan_and_is_restored() {
        let plan = br#"{"resourcePlans": {}}"#.repeat(1000);
        let compressed = compress(&plan).unwrap();
        assert_eq!(compressed, compress(&plan).unwrap());
        assert_eq!(compressed[4..8], [0; 4], "the header contains no time");
        assert_eq!(decompress(&compressed).unwrap(), plan);
    }

    #[test]
    fn a_plan_that_is_too_large_is_rejected_with_its_size_and_the_limit() {
        let mut random = 1_u64;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        })
        .take(MAX_COMPRESSED)
        .collect();
        let error = compress(&noise).unwrap_err().to_string();
        assert!(error.starts_with("the compressed plan of 7") && error.contains("limit of 716800 bytes"), "{error}");
        assert!(error.contains("split the stack") && error.contains("spec.approval.mode"), "{error}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan");
        create_private(&path).unwrap();
        let error = read_plan(&path).unwrap_err().to_string();
        assert!(error.contains("the CLI has written no plan"), "{error}");
        File::options().write(true).open(&path).unwrap().set_len(MAX_PLAN + 1).unwrap();
        let error = read_plan(&path).unwrap_err().to_string();
        assert!(error.starts_with("the plan of 33554433 bytes exceeds the limit of 33554432 bytes"), "{error}");
    }

    #[test]
    fn an_invalid_plan_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan");
        let follow = |compressed: &[u8]| decompress(compressed).and_then(|plan| write_plan(&path, &plan));
        let bomb = {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            for _ in 0..33 {
                encoder.write_all(&vec![0; 1024 * 1024]).unwrap();
            }
            encoder.finish().unwrap()
        };
        let truncated = compress(b"{}").unwrap();
        for (plan, words) in [
            (b"garbage".to_vec(), "the compressed plan of the request is invalid"),
            (truncated[..truncated.len() - 6].to_vec(), "the compressed plan of the request is invalid"),
            (bomb, "exceeds the limit of 33554432 bytes"),
            (compress(b"garbage").unwrap(), "not a JSON object at line 1"),
            (compress(b"[]").unwrap(), "not a JSON object at line 1"),
        ] {
            let error = follow(&plan).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        assert!(!path.exists());
        let error = planned_deletions(b"{}").unwrap_err().to_string();
        assert!(error.contains("not a list of URNs at line 1"), "{error}");
    }

    #[test]
    fn a_plan_file_is_readable_only_by_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("plan");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        create_private(&path).unwrap();
        assert_eq!(mode(), 0o600);
        create_private(&path).unwrap();
        write_plan(&path, b"{}").unwrap();
        assert_eq!((mode(), std::fs::read(&path).unwrap().as_slice()), (0o600, b"{}".as_slice()));
    }

    #[test]
    fn differences_list_up_to_five_additional_and_missing_resources() {
        assert_eq!(differences(&set(&["a", "b"]), &set(&["b", "a"])), None);
        let found = differences(&set(&["a", "b"]), &set(&["b", "c1", "c2", "c3", "c4", "c5", "c6", "c7"])).unwrap();
        assert_eq!(found, "not in the plan: c1, c2, c3, c4, c5 and 2 more; only in the plan: a");
    }
}
