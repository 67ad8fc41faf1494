//! Evaluates the CEL expressions of Stacks. In `dependsOn[].readyExpr`, `self` is the Stack and `dep` is the
//! dependency, as in Flux. In `approval.autoApproveExpr`, `changes` and `resources` are the changes in the plan.
//!
//! This code runs in the child process that [`super::evaluator`] starts. The process has resource limits, because users
//! control the expressions, and the CEL library limits neither steps nor memory.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

use cel::{Context, Env, ExecutionError, Value, extensions};
use serde::{Deserialize, Serialize};

use crate::subprocess;

/// Maximum length of a message about an expression, in characters. Without a limit, the message could contain large
/// parts of the objects.
const MAX_MESSAGE: usize = 300;

/// Request to the child process. The struct is generic, because the parent process serializes borrowed values and the
/// child process deserializes owned values.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request<Text: Ord, Object> {
    pub expression: Text,
    /// Variables of the expression, by name.
    pub variables: BTreeMap<Text, Object>,
}

/// Reason why the evaluation of an expression failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpressionError {
    /// The expression is invalid.
    Invalid(String),
    /// The evaluation failed with the current objects.
    Failed(String),
    /// The evaluation exceeded a limit.
    LimitExceeded(String),
}

/// Entry point of the child process. Reads a request from stdin and writes the result to stdout.
///
/// # Errors
///
/// Returns an error if the process fails to apply the resource limits or to read the request.
pub fn evaluate_stdin() -> io::Result<()> {
    let mut request = Vec::new();
    subprocess::confined_input()?.read_to_end(&mut request)?;
    let Request { expression, variables }: Request<String, serde_json::Value> = serde_json::from_slice(&request)?;
    drop(request);
    let result = evaluate(&expression, variables);
    io::stdout().write_all(&serde_json::to_vec(&result)?)
}

fn evaluate(expression: &str, variables: BTreeMap<String, serde_json::Value>) -> Result<bool, ExpressionError> {
    let environment = Arc::new(environment().map_err(ExpressionError::Failed)?);
    let invalid = |why: String| Err(ExpressionError::Invalid(clipped(&why)));
    let program = match environment.compile(expression) {
        Ok(program) => program,
        Err(errors) => {
            let first = errors.errors.first().map(|error| error.msg.clone()).unwrap_or_default();
            return invalid(format!("failed to compile: {first}"));
        }
    };
    let mut context = Context::with_env(environment.clone());
    for (name, value) in variables {
        context.add_variable_from_value(name, as_kubernetes_reads_it(value));
    }
    match program.execute(&context) {
        Ok(Value::Bool(result)) => Ok(result),
        Ok(other) => invalid(format!("result must be a bool, not {}", other.type_of())),
        Err(error @ (ExecutionError::UndeclaredReference(_) | ExecutionError::NoSuchOverload { .. })) => {
            invalid(format!("failed to evaluate: {error}"))
        }
        Err(error) => Err(ExpressionError::Failed(clipped(&error.to_string()))),
    }
}

/// Returns the CEL environment: the standard library, and the extensions for strings, lists and encodings.
fn environment() -> Result<Env, String> {
    let mut environment = Env::stdlib();
    for extension in [extensions::strings, extensions::lists, extensions::encoders] {
        environment.add_extension(extension).map_err(|error| error.to_string())?;
    }
    Ok(environment)
}

/// Converts JSON to CEL values in the same way as Kubernetes: integers become `int`, not `uint`.
fn as_kubernetes_reads_it(json: serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(bool) => bool.into(),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(int) => int.into(),
            None => number.as_f64().unwrap_or(f64::NAN).into(),
        },
        serde_json::Value::String(text) => text.into(),
        serde_json::Value::Array(list) => list.into_iter().map(as_kubernetes_reads_it).collect::<Vec<_>>().into(),
        serde_json::Value::Object(map) => {
            let map = map.into_iter().map(|(key, value)| (key, as_kubernetes_reads_it(value)));
            map.collect::<std::collections::HashMap<String, Value>>().into()
        }
    }
}

fn clipped(message: &str) -> String {
    if message.chars().count() <= MAX_MESSAGE {
        return message.to_owned();
    }
    message.chars().take(MAX_MESSAGE).chain("…".chars()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stack(name: &str) -> serde_json::Value {
        let conditions = json!([{"type": "Ready", "status": "True", "reason": "ProcessingCompleted", "message": "done", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "metadata": {"namespace": "apps", "name": name, "generation": 3, "labels": {"tier": "base"}},
            "spec": {"stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}},
            "status": {"observedGeneration": 3, "outputs": {"count": 2, "zones": ["a", "b"]}, "conditions": conditions},
        })
    }

    fn result_of(expression: &str) -> Result<bool, ExpressionError> {
        evaluate(expression, [("self".to_owned(), stack("app")), ("dep".to_owned(), stack("base"))].into())
    }

    #[test]
    fn an_expression_can_read_all_fields_of_both_stacks() {
        let rows = [
            ("dep.metadata.name == 'base' && self.metadata.name == 'app'", true),
            ("dep.metadata.generation == dep.status.observedGeneration", true),
            ("dep.status.outputs.count - 3 < 0", true),
            ("dep.status.outputs.count > 1.5", true),
            ("dep.status.conditions.filter(c, c.type == 'Ready').all(c, c.status == 'True')", true),
            ("dep.status.conditions.all(c, self.status.conditions.exists(d, d.type == c.type))", true),
            ("self.metadata.labels.tier.upperAscii() == 'BASE' && dep.metadata.name.matches('^b')", true),
            ("has(dep.status.outputs.address) || dep.?status.?outputs.?zone.orValue('a') == 'a'", true),
            ("timestamp(dep.status.conditions[0].lastTransitionTime) < timestamp('2026-02-01T00:00:00Z')", true),
            ("dep.status.outputs.zones.size() > 2", false),
        ];
        for (expression, expected) in rows {
            assert_eq!(result_of(expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn invalid_expressions_are_distinguished_from_failed_evaluations() {
        let invalid = [
            ("dep.spec.(", "failed to compile"),
            ("other.spec == 1", "failed to evaluate: Undeclared reference to 'other'"),
            ("sum(dep.status.outputs)", "sum"),
            ("dep.status.outputs.count", "result must be a bool, not int"),
        ];
        for (expression, words) in invalid {
            let result = result_of(expression);
            assert!(
                matches!(&result, Err(ExpressionError::Invalid(why)) if why.contains(words)),
                "{expression}: {result:?}"
            );
        }
        let result = result_of("dep.status.outputs.address == 'a'");
        assert!(matches!(&result, Err(ExpressionError::Failed(why)) if why.contains("address")), "{result:?}");
        let long = format!("dep['{}'] == 1", "a".repeat(900));
        let result = result_of(&long);
        assert!(matches!(&result, Err(ExpressionError::Failed(why)) if why.chars().count() <= 301), "{result:?}");
    }
}
