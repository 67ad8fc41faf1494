//! Tests for the start and the end of reconciliations.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream;
use kube::runtime::reflector;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use serde_json::json;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use super::*;
use crate::api::auto::Workspace;
use crate::api::pulumi::Stack;
use crate::telemetry::metrics::Metrics;

fn workspace(namespace: &str, name: &str) -> Workspace {
    serde_json::from_value(json!({
        "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Workspace",
        "metadata": { "name": name, "namespace": namespace, "uid": name }, "spec": {},
    }))
    .unwrap()
}

fn reference(workspace: &Workspace) -> ObjectRef<Workspace> {
    ObjectRef::from_obj(workspace)
}

/// Dispatcher in the background.
struct Scene {
    runner: Arc<ReconcileRunner>,
    store: Writer<Workspace>,
    triggers: UnboundedSender<ObjectRef<Workspace>>,
    end: CancellationToken,
    /// Names of the objects in the order of their reconciliations.
    started: Arc<Mutex<Vec<String>>>,
    metrics: Metrics,
    /// Number of reported deletions.
    deleted: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Scene {
    /// Starts a dispatcher. `result` returns the result of a reconciliation from the name of the object and the number
    /// of earlier reconciliations.
    fn new<R>(slots: (usize, usize), result: impl Fn(&str, usize) -> R + Send + Sync + 'static) -> Scene
    where
        R: Future<Output = Result<Outcome, ReconcileError>> + Send + 'static,
    {
        let (metrics, deleted) = (Metrics::default(), Arc::<AtomicUsize>::default());
        // The tests use the kind Stack, because individual Workspaces have no metrics.
        let runner = ReconcileRunner::new::<Stack>("workspace", Duration::from_secs(60), metrics.clone());
        let count = deleted.clone();
        let runner = runner.on_deleted(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let runner = Arc::new(runner.with_slots(slots.0, slots.1));
        let (objects, store) = reflector::store();
        let (triggers, requests) = unbounded_channel();
        let requests = stream::unfold(requests, |mut requests| async move { Some((requests.recv().await?, requests)) });
        let (end, started) = (CancellationToken::new(), Arc::<Mutex<Vec<String>>>::default());
        let (objects_urgency, reported) = (|_: &Workspace| Urgency::Normal, Arc::<Mutex<Vec<String>>>::default());
        let errors = reported.clone();
        let report_error: ReportError<Workspace> = Arc::new(move |_, error| {
            errors.lock().unwrap().push(error);
            Box::pin(async {})
        });
        let dispatcher = Dispatcher { runner: runner.clone(), objects, urgency: objects_urgency, report_error };
        let (all, stopped) = (started.clone(), end.clone());
        let reconcile = move |workspace: Arc<Workspace>| {
            let name = workspace.metadata.name.clone().unwrap();
            let mut all = all.lock().unwrap();
            let earlier = all.iter().filter(|started| **started == name).count();
            all.push(name.clone());
            result(&name, earlier)
        };
        let run = async move { dispatcher.run(SelectAll::from_iter([requests.boxed()]), reconcile, stopped).await };
        Scene { runner, store, triggers, end, started, metrics, deleted, task: tokio::spawn(run) }
    }

    fn list(&mut self, objects: &[Workspace]) {
        self.store.apply_watcher_event(&Event::Init);
        objects.iter().for_each(|object| self.store.apply_watcher_event(&Event::InitApply(object.clone())));
        self.store.apply_watcher_event(&Event::InitDone);
    }

    fn trigger(&self, object: &Workspace) {
        self.triggers.send(reference(object)).unwrap();
    }

    /// Creates an object, starts its reconciliation, deletes the object and returns it.
    async fn delete_during_reconciliation(&mut self) -> Workspace {
        let web = workspace("apps", "web");
        self.list(std::slice::from_ref(&web));
        self.trigger(&web);
        pass(MOMENT).await;
        self.store.apply_watcher_event(&Event::Delete(web.clone()));
        self.runner.forget(&web);
        web
    }

    fn started(&self) -> Vec<String> {
        self.started.lock().unwrap().clone()
    }
}

async fn pass(duration: Duration) {
    tokio::time::sleep(duration).await;
}

const MOMENT: Duration = Duration::from_millis(10);

#[tokio::test(start_paused = true)]
async fn reconciliations_start_after_the_initial_list_and_only_for_existing_objects() {
    let mut scene = Scene::new((4, 4), |_, _| async { Ok(Outcome::Settled) });
    let (web, gone) = (workspace("apps", "web"), workspace("apps", "gone"));
    for object in [&web, &gone, &web] {
        scene.trigger(object);
    }
    pass(MOMENT).await;
    assert_eq!(scene.started(), Vec::<String>::new(), "the store is not complete");
    scene.list(std::slice::from_ref(&web));
    pass(MOMENT).await;
    assert_eq!(scene.started(), ["web"]);
    scene.trigger(&gone);
    scene.trigger(&web);
    pass(MOMENT).await;
    assert_eq!(scene.started(), ["web", "web"]);
}

#[tokio::test(start_paused = true)]
async fn the_outcome_determines_the_time_of_the_next_reconciliation() {
    let mut scene = Scene::new((4, 4), |_, earlier| async move {
        match earlier {
            0 => Ok(Outcome::After(Duration::from_secs(10))),
            1 => panic!("test panic"),
            _ => Ok(Outcome::Settled),
        }
    });
    let web = workspace("apps", "web");
    scene.list(std::slice::from_ref(&web));
    scene.trigger(&web);
    let mut numbers = Vec::new();
    for wait in [1, 8, 2, 60, 3600] {
        pass(Duration::from_secs(wait)).await;
        numbers.push(scene.started().len());
    }
    assert_eq!(numbers, [1, 1, 3, 3, 3], "after ten seconds, after the first backoff, and never again");
    scene.trigger(&web);
    pass(MOMENT).await;
    assert_eq!(scene.started().len(), 4, "a change triggers a reconciliation");
}

#[tokio::test(start_paused = true)]
async fn hanging_reconciliations_do_not_block_other_namespaces() {
    let ended = Arc::new(AtomicUsize::new(0));
    let count = ended.clone();
    let mut scene = Scene::new((4, 3), move |name, _| {
        let (hangs, ended) = (name.starts_with("hostile"), count.clone());
        async move {
            if hangs {
                pass(Duration::from_secs(30)).await;
            }
            ended.fetch_add(1, Ordering::SeqCst);
            Ok(Outcome::Settled)
        }
    });
    let hostile = (0..20).map(|number| workspace("hostile", &format!("hostile-{number}")));
    let honest = (0..10).map(|number| workspace("apps", &format!("app-{number}")));
    let all: Vec<Workspace> = hostile.chain(honest).collect();
    scene.list(&all);
    all.iter().for_each(|object| scene.trigger(object));
    pass(Duration::from_secs(1)).await;
    let started = scene.started();
    assert_eq!(started.iter().filter(|name| name.starts_with("hostile")).count(), 3, "{started:?}");
    assert_eq!(started.iter().filter(|name| name.starts_with("app")).count(), 10, "{started:?}");
    scene.trigger(&workspace("apps", "app-0"));
    scene.end.cancel();
    pass(Duration::from_secs(1)).await;
    assert!(!scene.task.is_finished(), "three reconciliations are in progress");
    pass(Duration::from_secs(30)).await;
    assert!(scene.task.is_finished());
    assert_eq!((scene.started().len(), ended.load(Ordering::SeqCst)), (13, 13), "no reconciliation starts at the end");
}

#[tokio::test(start_paused = true)]
async fn an_expedited_object_starts_without_another_event() {
    let mut scene = Scene::new((1, 1), |_, _| async {
        pass(Duration::from_secs(100)).await;
        Ok(Outcome::Settled)
    });
    let (running, granted) = (workspace("apps", "running"), workspace("apps", "granted"));
    scene.list(&[running.clone(), granted.clone()]);
    scene.runner.begin(&granted);
    scene.trigger(&running);
    pass(MOMENT).await;
    let granted_key = ("apps".to_owned(), "granted".to_owned());
    scene.runner.queue().add(&granted_key, Urgency::Queued);
    scene.runner.expedite(&granted);
    pass(MOMENT).await;
    assert_eq!(scene.started(), ["running", "granted"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_during_a_reconciliation_triggers_one_further_reconciliation() {
    for outcome in [Outcome::Settled, Outcome::After(Duration::from_secs(3600))] {
        let mut scene = Scene::new((4, 4), move |_, _| async move {
            pass(Duration::from_secs(1)).await;
            Ok(outcome)
        });
        let web = workspace("apps", "web");
        scene.list(std::slice::from_ref(&web));
        scene.trigger(&web);
        let mut numbers = Vec::new();
        for milliseconds in [10, 500, 1000, 2000] {
            pass(Duration::from_millis(milliseconds)).await;
            numbers.push(scene.started().len());
            if numbers.len() <= 2 {
                scene.trigger(&web);
            }
        }
        assert_eq!(numbers, [1, 1, 2, 2], "{outcome:?}: no concurrent reconciliation, and no third one");
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_during_its_reconciliation_leaves_no_state() {
    let mut scene = Scene::new((4, 4), |_, _| async {
        pass(Duration::from_secs(1)).await;
        Ok(Outcome::After(Duration::from_secs(1)))
    });
    scene.delete_during_reconciliation().await;
    pass(Duration::from_secs(5)).await;
    assert_eq!(scene.started(), ["web"], "the object no longer exists");
    assert!(scene.runner.queue().keys().is_empty());
    assert_eq!(scene.deleted.load(Ordering::SeqCst), 2, "at the deletion, and after the last reconciliation");
    let text = scene.metrics.encode().unwrap();
    assert!(!text.contains("name=\"web\""), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_new_object_with_the_name_of_a_deleted_object_is_reconciled_after_the_old_reconciliation() {
    let mut scene = Scene::new((4, 4), |_, _| async {
        pass(Duration::from_secs(1)).await;
        Ok(Outcome::Settled)
    });
    let web = scene.delete_during_reconciliation().await;
    scene.store.apply_watcher_event(&Event::Apply(web.clone()));
    scene.trigger(&web);
    pass(Duration::from_millis(500)).await;
    assert_eq!(scene.started(), ["web"], "the old reconciliation is in progress");
    pass(Duration::from_secs(5)).await;
    assert_eq!(scene.started(), ["web", "web"]);
    assert_eq!(scene.deleted.load(Ordering::SeqCst), 2, "at the deletion, and after the old reconciliation");
    let text = scene.metrics.encode().unwrap();
    assert!(text.contains("name=\"web\""), "the new object has metrics: {text}");
}
