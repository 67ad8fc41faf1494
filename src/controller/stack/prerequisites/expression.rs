//! `dependsOn[].readyExpr`: what a CEL expression says of another Stack, as Flux asks it: `self` is the Stack, `dep` the other one.
//!
//! Whoever writes a Stack writes the expression, so it is bounded: its length by the schema, its nesting here, its recursion by a stack of
//! its own, its time by a limit.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use cel::common::ast::{EntryExpr, Expr, IdedExpr};
use cel::{Context, Env, ExecutionError, Value, extensions};
use tokio::sync::{Semaphore, oneshot};

use crate::api::pulumi::Stack;

/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How many expressions may be at work. One that is given up holds its place until it ends.
static PLACES: Semaphore = Semaphore::const_new(2);
/// The parser and the interpreter recurse: a hundred nested brackets, which is the parser's limit, take a few MiB.
const THREAD_STACK: usize = 64 * 1024 * 1024;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpressionError {
    /// Only another expression can mend it. The message goes on behind the expression.
    Invalid(String),
    /// Of the objects as they are now.
    Failed(String),
}

/// Whether the expression is true of the two.
pub async fn evaluate(expression: &str, this: &Stack, other: &Stack) -> Result<bool, ExpressionError> {
    let failed = |why: &str| ExpressionError::Failed(why.to_owned());
    let work = async {
        let place = PLACES.acquire().await.map_err(|_| failed("the controller ends"))?;
        let (expression, this, other) = (expression.to_owned(), value(this)?, value(other)?);
        let (answer, answered) = oneshot::channel();
        let thread = std::thread::Builder::new().name("readyExpr".to_owned()).stack_size(THREAD_STACK);
        let begun = thread.spawn(move || {
            // Nobody listens any more when it has taken too long.
            drop(answer.send(ask(&expression, this, other)));
            drop(place);
        });
        begun.map_err(|error| ExpressionError::Failed(format!("it cannot be evaluated: {error}")))?;
        answered.await.map_err(|_| failed("its evaluation broke off"))?
    };
    tokio::time::timeout(PATIENCE, work).await.unwrap_or_else(|_| Err(failed("it took too long")))
}

fn value(stack: &Stack) -> Result<Value, ExpressionError> {
    let object = serde_json::to_value(stack).map_err(|error| ExpressionError::Failed(error.to_string()))?;
    Ok(as_kubernetes_reads_it(object))
}

/// Whole numbers of JSON are `int`, not `uint`.
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

/// The functions that expressions may call: the standard ones, and those for texts, lists and encodings.
static ENVIRONMENT: LazyLock<Result<Arc<Env>, String>> = LazyLock::new(|| {
    let mut environment = Env::stdlib();
    for extension in [extensions::strings, extensions::lists, extensions::encoders] {
        environment.add_extension(extension).map_err(|error| error.to_string())?;
    }
    Ok(Arc::new(environment))
});

fn ask(expression: &str, this: Value, other: Value) -> Result<bool, ExpressionError> {
    let environment = ENVIRONMENT.as_ref().map_err(|error| ExpressionError::Failed(error.clone()))?;
    let invalid = |why: String| Err(ExpressionError::Invalid(why));
    let program = match environment.compile(expression) {
        Ok(program) => program,
        Err(errors) => {
            let first = errors.errors.first().map(|error| error.msg.clone()).unwrap_or_default();
            return invalid(format!("cannot be read: {first}"));
        }
    };
    if loops(program.expression()) > 1 {
        return invalid("has a macro within a macro: take one list after the other".to_owned());
    }
    let mut context = Context::with_env(environment.clone());
    context.add_variable_from_value("self", this);
    context.add_variable_from_value("dep", other);
    match program.execute(&context) {
        Ok(Value::Bool(answer)) => Ok(answer),
        Ok(other) => invalid(format!("is not a condition: it gives {}", other.type_of())),
        Err(error @ (ExecutionError::UndeclaredReference(_) | ExecutionError::NoSuchOverload { .. })) => {
            invalid(format!("cannot be evaluated: {error}"))
        }
        Err(error) => Err(ExpressionError::Failed(error.to_string())),
    }
}

/// How many loops are within each other at most: each goes through all of a list.
fn loops(expression: &IdedExpr) -> usize {
    let most = |expressions: &mut dyn Iterator<Item = &IdedExpr>| expressions.map(loops).max().unwrap_or_default();
    match &expression.expr {
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => 0,
        Expr::Call(call) => most(&mut call.target.as_deref().into_iter().chain(&call.args)),
        Expr::Comprehension(comprehension) => {
            let body = [&comprehension.loop_cond, &comprehension.loop_step, &comprehension.result];
            let before = [&comprehension.iter_range, &comprehension.accu_init];
            most(&mut before.into_iter()).max(1 + most(&mut body.into_iter()))
        }
        Expr::List(list) => most(&mut list.elements.iter()),
        Expr::Map(map) => entries(map.entries.iter().map(|entry| &entry.expr)),
        Expr::Select(select) => loops(&select.operand),
        Expr::Struct(of) => entries(of.entries.iter().map(|entry| &entry.expr)),
    }
}

fn entries<'e>(entries: impl Iterator<Item = &'e EntryExpr>) -> usize {
    let each = entries.map(|entry| match entry {
        EntryExpr::StructField(field) => loops(&field.value),
        EntryExpr::MapEntry(entry) => loops(&entry.key).max(loops(&entry.value)),
    });
    each.max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stack(name: &str) -> Stack {
        let conditions = json!([{"type": "Ready", "status": "True", "reason": "ProcessingCompleted", "message": "done", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        serde_json::from_value(json!({
            "apiVersion": "pulumi.com/v1", "kind": "Stack",
            "metadata": {"namespace": "apps", "name": name, "generation": 3, "labels": {"tier": "base"}},
            "spec": {"stack": "dev", "fluxSource": {"sourceRef": {"kind": "Bucket", "name": "b"}}},
            "status": {"observedGeneration": 3, "outputs": {"count": 2, "zones": ["a", "b"]}, "conditions": conditions},
        }))
        .unwrap()
    }

    async fn said(expression: &str) -> Result<bool, ExpressionError> {
        evaluate(expression, &stack("app"), &stack("base")).await
    }

    #[tokio::test]
    async fn an_expression_sees_both_stacks_whole() {
        let rows = [
            ("dep.metadata.name == 'base' && self.metadata.name == 'app'", true),
            ("dep.metadata.generation == dep.status.observedGeneration", true),
            ("dep.status.outputs.count - 3 < 0", true),
            ("dep.status.outputs.count > 1.5", true),
            ("dep.status.conditions.filter(c, c.type == 'Ready').all(c, c.status == 'True')", true),
            ("self.metadata.labels.tier.upperAscii() == 'BASE' && dep.metadata.name.matches('^b')", true),
            ("has(dep.status.outputs.address) || dep.?status.?outputs.?zone.orValue('a') == 'a'", true),
            ("timestamp(dep.status.conditions[0].lastTransitionTime) < timestamp('2026-02-01T00:00:00Z')", true),
            ("dep.status.outputs.zones.size() > 2", false),
        ];
        for (expression, wanted) in rows {
            assert_eq!(said(expression).await, Ok(wanted), "{expression}");
        }
    }

    #[tokio::test]
    async fn one_that_can_never_answer_is_told_from_one_that_cannot_now() {
        let invalid = [
            ("dep.spec.(", "cannot be read"),
            ("other.spec == 1", "cannot be evaluated: Undeclared reference to 'other'"),
            ("sum(dep.status.outputs)", "sum"),
            ("dep.status.outputs.count", "is not a condition: it gives int"),
            ("dep.status.conditions.all(c, dep.status.conditions.all(d, c == d))", "macro within a macro"),
        ];
        for (expression, words) in invalid {
            let answer = said(expression).await;
            assert!(
                matches!(&answer, Err(ExpressionError::Invalid(why)) if why.contains(words)),
                "{expression}: {answer:?}"
            );
        }
        let answer = said("dep.status.outputs.address == 'a'").await;
        assert!(matches!(&answer, Err(ExpressionError::Failed(why)) if why.contains("address")), "{answer:?}");
    }

    #[tokio::test]
    async fn no_expression_of_the_longest_length_harms_the_process() {
        for (part, end, count) in [("(", ")", 500), ("[", "]", 500), ("!", "", 1000), ("1+", "", 500), ("-", "", 1000)]
        {
            let expression = format!("{}1{}", part.repeat(count), end.repeat(count));
            assert!(said(&expression).await.is_err(), "{part}");
        }
    }
}
