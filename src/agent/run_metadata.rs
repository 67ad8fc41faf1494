//! Metadata that a run passes to the state backend and to an OpenTelemetry collector. The metadata consists of the
//! source's Git metadata, the Pulumi stack tags, and the trace context.

use std::collections::HashMap;

use super::environment::{self, Environment};
use super::layout::Layout;
use crate::api::cli_options::OTEL_TRACES;
use crate::pulumi::cli::TRACEPARENT;
use crate::pulumi::project::Project;
use crate::pulumi::{backend, vcs};
use crate::rpc::proto::{RunRequest, SourceMetadata};

/// Adds the variables that pass the metadata of a run to the CLI.
pub fn add_to(environment: &mut Environment, request: &RunRequest) {
    if let Some(source) = &request.source {
        add_variables(environment, source);
    }
    add_trace_variables(environment, request);
}

/// Adds the variables from which the CLI reads Git metadata if the project is not in a Git working copy. Variables of
/// the user take precedence.
fn add_variables(environment: &mut Environment, source: &SourceMetadata) {
    for (name, value) in variables(source) {
        environment.variables.entry(name.into()).or_insert_with(|| value.into());
    }
}

/// Adds the variables that make the CLI export its spans as children of the run's span. Variables of the user take
/// precedence.
fn add_trace_variables(environment: &mut Environment, request: &RunRequest) {
    let variables = [(TRACEPARENT, &request.traceparent), (OTEL_TRACES, &request.otlp_endpoint)];
    for (name, value) in variables.into_iter().filter(|(_, value)| !value.is_empty()) {
        environment.variables.entry(name.into()).or_insert_with(|| value.into());
    }
}

/// Returns a tracing span that adds the trace ID to a run's log lines.
pub fn log_span(traceparent: &str) -> tracing::Span {
    match traceparent.split('-').nth(1) {
        Some(trace_id) => tracing::info_span!("operation", trace_id),
        None => tracing::Span::none(),
    }
}

/// Returns the variables that have a value.
fn variables(source: &SourceMetadata) -> impl Iterator<Item = (&'static str, String)> {
    let repository = vcs::repository(&source.repository_url).unwrap_or_default();
    let variables = [
        ("PULUMI_VCS_REPO_OWNER", repository.owner),
        ("PULUMI_VCS_REPO_NAME", repository.name),
        ("PULUMI_VCS_REPO_KIND", repository.kind),
        ("PULUMI_VCS_REPO_ROOT", source.directory.clone()),
        ("PULUMI_GIT_HEAD", source.head.clone()),
        ("PULUMI_GIT_HEAD_NAME", source.head_name.clone()),
        // Replaces the value of `--message`.
        ("PULUMI_GIT_COMMIT_MESSAGE", source.message.clone()),
        ("PULUMI_GIT_AUTHOR", source.author.clone()),
        ("PULUMI_GIT_AUTHOR_EMAIL", source.author_email.clone()),
        ("PULUMI_GIT_COMMITTER", source.committer.clone()),
        ("PULUMI_GIT_COMMITTER_EMAIL", source.committer_email.clone()),
    ];
    variables.into_iter().filter(|(_, value)| !value.is_empty())
}

/// Returns the requested tags, sorted by name. For a state backend other than Pulumi Cloud, the function returns no
/// tags, because such a backend does not support tags in the configuration.
pub fn stack_tags(
    layout: &Layout,
    environment: &Environment,
    requested: &HashMap<String, String>,
) -> Vec<(String, String)> {
    let project = Project::read(&layout.workspace()).ok();
    let url = environment::backend_url(environment, project.as_ref());
    let is_cloud = url.is_some_and(|url| backend::is_pulumi_cloud(&url));
    if !is_cloud {
        return Vec::new();
    }
    let mut tags: Vec<_> = requested.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    tags.sort_unstable();
    tags
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        Environment { variables: variables.collect(), secrets: Vec::new(), removed: Vec::new() }
    }

    fn shown(environment: &Environment) -> Vec<(&str, &str)> {
        let variables = environment.variables.iter();
        variables.map(|(name, value)| (name.to_str().unwrap(), value.to_str().unwrap())).collect()
    }

    #[test]
    fn known_git_metadata_is_set_unless_the_user_has_set_it() {
        let source = SourceMetadata {
            repository_url: "https://github.com/acme/web.git".into(),
            head: "1a2b".into(),
            head_name: "refs/heads/main".into(),
            message: "Add a bucket".into(),
            author: "Ada".into(),
            author_email: "ada@example.com".into(),
            committer: "Grace".into(),
            committer_email: "grace@example.com".into(),
            directory: "infra".into(),
        };
        let mut complete = environment(&[("PULUMI_GIT_AUTHOR", "user"), ("PULUMI_GIT_COMMIT_MESSAGE", "")]);
        add_variables(&mut complete, &source);
        let expected = [
            ("PULUMI_GIT_AUTHOR", "user"),
            ("PULUMI_GIT_AUTHOR_EMAIL", "ada@example.com"),
            ("PULUMI_GIT_COMMITTER", "Grace"),
            ("PULUMI_GIT_COMMITTER_EMAIL", "grace@example.com"),
            ("PULUMI_GIT_COMMIT_MESSAGE", ""),
            ("PULUMI_GIT_HEAD", "1a2b"),
            ("PULUMI_GIT_HEAD_NAME", "refs/heads/main"),
            ("PULUMI_VCS_REPO_KIND", "github.com"),
            ("PULUMI_VCS_REPO_NAME", "web"),
            ("PULUMI_VCS_REPO_OWNER", "acme"),
            ("PULUMI_VCS_REPO_ROOT", "infra"),
        ];
        assert_eq!(shown(&complete), expected);
        let mut partial = environment(&[]);
        let url = "https://git.example.com/web".into();
        add_variables(
            &mut partial,
            &SourceMetadata { repository_url: url, head: "1a2b".into(), ..SourceMetadata::default() },
        );
        assert_eq!(shown(&partial), [("PULUMI_GIT_HEAD", "1a2b")], "the URL has no owner");
    }

    #[test]
    fn the_cli_joins_the_trace_of_the_run_unless_the_user_has_set_another() {
        let request = RunRequest {
            traceparent: "00-aa-bb-01".into(),
            otlp_endpoint: "grpc://otel:4317".into(),
            ..RunRequest::default()
        };
        let mut complete = environment(&[]);
        add_trace_variables(&mut complete, &request);
        let expected = [("PULUMI_OPTION_OTEL_TRACES", "grpc://otel:4317"), ("TRACEPARENT", "00-aa-bb-01")];
        assert_eq!(shown(&complete), expected);
        let mut own = environment(&[("PULUMI_OPTION_OTEL_TRACES", "file:///tmp/spans")]);
        add_trace_variables(&mut own, &request);
        assert_eq!(shown(&own), [("PULUMI_OPTION_OTEL_TRACES", "file:///tmp/spans"), ("TRACEPARENT", "00-aa-bb-01")]);
        let mut without = environment(&[]);
        add_trace_variables(&mut without, &RunRequest::default());
        assert!(shown(&without).is_empty());
    }

    #[test]
    fn only_pulumi_cloud_receives_tags() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        let requested = HashMap::from([("b".to_owned(), "2".to_owned()), ("a".to_owned(), "1".to_owned())]);
        let all = [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "2".to_owned())];
        let rows = [
            ("https://api.pulumi.com", true),
            ("http://pulumi.example.com:8080", true),
            ("s3://state", false),
            ("file:///state", false),
            ("nonsense", false),
        ];
        for (url, is_cloud) in rows {
            let tags = stack_tags(&layout, &environment(&[("PULUMI_BACKEND_URL", url)]), &requested);
            assert_eq!(tags, if is_cloud { all.to_vec() } else { Vec::new() }, "{url}");
        }
        assert_eq!(stack_tags(&layout, &environment(&[]), &requested), all, "the default backend is Pulumi Cloud");
    }
}
