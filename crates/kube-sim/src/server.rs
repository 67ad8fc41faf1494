//! The server: clients, direct access to the objects, faults and observers.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tokio::time::Instant;

use crate::admission::{Admission, AdmissionRequest};
use crate::faults::{After, Before, Delivery, Disconnected, Interceptor};
use crate::list::Representation;
use crate::metadata;
use crate::request::{Call, Verb};
use crate::resources::{Kinds, RegistrationError};
use crate::schema::SchemaError;
use crate::state::{Core, Reply};
use crate::status::Status;
use crate::store::{Change, DEFAULT_HISTORY, GroupResource, Key, Store};
use crate::watch::{Watch, WatchBody};

/// Settings of a server.
pub struct Options {
    /// Seed of UIDs and generated names.
    pub seed: u64,
    /// Current time, for metadata. Usually a fixed start plus the time of tokio's clock.
    pub clock: Box<dyn Fn() -> Timestamp + Send>,
    /// Number of changes that the server remembers for watches and frozen views.
    pub history: usize,
}

impl Options {
    /// Returns settings whose time starts at `start` and passes as tokio's clock does. With a paused clock, the time is
    /// virtual.
    pub fn new(seed: u64, start: Timestamp) -> Self {
        let origin = Instant::now();
        let clock = move || start.checked_add(origin.elapsed()).unwrap_or(start);
        Options { seed, clock: Box::new(clock), history: DEFAULT_HISTORY }
    }
}

/// Line of a trace.
pub type TraceHook = Box<dyn FnMut(&str) + Send>;
/// Observer of committed changes.
pub type Observer = Box<dyn FnMut(&Change) + Send>;

#[derive(Default)]
struct Hooks {
    interceptors: Vec<Box<dyn Interceptor>>,
}

/// In-memory Kubernetes API server. Cheap to clone. All clones share the objects.
#[derive(Clone)]
pub struct Server {
    core: Arc<Mutex<Core>>,
    watches: Arc<Mutex<Watches>>,
    hooks: Arc<Mutex<Hooks>>,
    observers: Arc<Mutex<Vec<Observer>>>,
    trace: Arc<Mutex<Option<TraceHook>>>,
    sequence: Arc<Mutex<u64>>,
}

#[derive(Default)]
struct Watches {
    active: Vec<Watch>,
    /// Delivery by client and resource. Without a resource, the setting applies to all resources of the client.
    delivery: BTreeMap<(String, Option<GroupResource>), Delivery>,
    /// Last revision that a client sees in lists and watches.
    views: BTreeMap<String, u64>,
}

impl Watches {
    fn delivery_for(&self, actor: &str, resource: &GroupResource) -> Delivery {
        let specific = self.delivery.get(&(actor.to_owned(), Some(resource.clone())));
        specific.or_else(|| self.delivery.get(&(actor.to_owned(), None))).copied().unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Creates a server with the built-in kinds and the namespace `default`.
    ///
    /// # Errors
    /// Returns an error if the types of the built-in kinds are invalid.
    pub fn new(options: Options) -> Result<Self, SchemaError> {
        Ok(Self::with_kinds(options, Kinds::builtin()?))
    }

    /// Creates a server with these kinds and the namespace `default`.
    pub fn with_kinds(options: Options, kinds: Kinds) -> Self {
        let core = Core {
            store: Store::new(options.history),
            resources: kinds,
            clock: options.clock,
            random: fastrand::Rng::with_seed(options.seed),
            admission: Vec::new(),
            reviews: None,
            changes: Vec::new(),
            addresses: 0,
        };
        let server = Server {
            core: Arc::new(Mutex::new(core)),
            watches: Arc::default(),
            hooks: Arc::default(),
            observers: Arc::default(),
            trace: Arc::default(),
            sequence: Arc::default(),
        };
        // The namespace is valid.
        let _ = server
            .create(&serde_json::json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "default" } }));
        server
    }

    /// Registers the kinds of CustomResourceDefinitions, as YAML or JSON with any number of documents.
    ///
    /// # Errors
    /// Returns an error if a definition contains something that this crate does not implement, such as a CEL function.
    pub fn register(&self, definitions: &str) -> Result<(), RegistrationError> {
        lock(&self.core).resources.register(definitions)
    }

    /// Returns a client. `actor` is the name of the client in traces and for faults.
    pub fn client(&self, actor: &str) -> Client {
        Client::new(self.service(actor), "default")
    }

    /// Returns the service that a client uses, for clients with own middleware.
    pub fn service(&self, actor: &str) -> Service {
        Service { server: self.clone(), actor: actor.to_owned() }
    }

    // Faults.

    /// Adds an interceptor. The first interceptor that does not pass a request decides.
    pub fn intercept(&self, interceptor: impl Interceptor + 'static) {
        lock(&self.hooks).interceptors.push(Box::new(interceptor));
    }

    /// Removes all interceptors.
    pub fn clear_interceptors(&self) {
        lock(&self.hooks).interceptors.clear();
    }

    /// Sets how the events of a client's watches are delivered, for one resource or for all. The setting also applies to
    /// later watches.
    pub fn set_delivery(&self, actor: &str, resource: Option<GroupResource>, delivery: Delivery) {
        let mut watches = lock(&self.watches);
        watches.delivery.insert((actor.to_owned(), resource), delivery);
        for watch in watches.active.iter().filter(|watch| watch.actor == actor) {
            watch.set_delivery(watches.delivery_for(actor, &watch.resource.id));
        }
    }

    /// Delivers the next event of a client's held watches of a resource. Returns whether there was one.
    pub fn release_event(&self, actor: &str, resource: &GroupResource) -> bool {
        let watches = lock(&self.watches);
        let mut held = watches.active.iter().filter(|watch| watch.actor == actor && watch.resource.id == *resource);
        held.any(Watch::release_one)
    }

    /// Returns the number of events that a client has not received.
    pub fn undelivered(&self, actor: &str) -> usize {
        lock(&self.watches).active.iter().filter(|watch| watch.actor == actor).map(Watch::waiting).sum()
    }

    /// Returns the clients and resources with events that have not been received, and the numbers of these events. With
    /// held watches, [`Server::release_event`] delivers them one by one.
    pub fn pending_events(&self) -> Vec<(String, GroupResource, usize)> {
        let mut pending: BTreeMap<(String, GroupResource), usize> = BTreeMap::new();
        for watch in lock(&self.watches).active.iter().filter(|watch| watch.waiting() > 0) {
            *pending.entry((watch.actor.clone(), watch.resource.id.clone())).or_default() += watch.waiting();
        }
        pending.into_iter().map(|((actor, resource), count)| (actor, resource, count)).collect()
    }

    /// Closes a client's watches of a resource, or of all resources, with a connection error.
    pub fn break_watches(&self, actor: &str, resource: Option<&GroupResource>) {
        self.end_watches(actor, resource, Watch::break_off);
    }

    /// Ends a client's watches of a resource, or of all resources, with `410 Gone`. Events that have not been delivered are
    /// lost.
    pub fn expire_watches(&self, actor: &str, resource: Option<&GroupResource>) {
        self.end_watches(actor, resource, |watch| {
            watch.discard();
            watch.push_error(&Status::expired("too old resource version: 1 (2)"));
            watch.end();
        });
    }

    fn end_watches(&self, actor: &str, resource: Option<&GroupResource>, end: impl Fn(&Watch)) {
        let mut watches = lock(&self.watches);
        watches.active.retain(|watch| {
            let is_selected = watch.actor == actor && resource.is_none_or(|resource| watch.resource.id == *resource);
            if is_selected {
                end(watch);
            }
            !is_selected
        });
    }

    /// Freezes what a client sees in lists and watches at a revision, as if it were connected to an API server whose cache
    /// does not advance. Reads of single objects and writes use the current objects.
    pub fn freeze(&self, actor: &str, revision: u64) {
        lock(&self.watches).views.insert(actor.to_owned(), revision);
    }

    /// Ends [`Server::freeze`]. Watches deliver all changes since.
    pub fn unfreeze(&self, actor: &str) {
        let core = lock(&self.core);
        let mut watches = lock(&self.watches);
        watches.views.remove(actor);
        for watch in watches.active.iter_mut().filter(|watch| watch.actor == actor) {
            if watch.revision < core.store.compacted() {
                watch.push_error(&Status::expired("too old resource version"));
                watch.end();
            } else {
                watch.catch_up(&core, None);
            }
        }
    }

    /// Forgets all changes up to the current revision. Watches that need older changes fail with `410 Gone`, and the
    /// continuation of a list too.
    pub fn compact(&self) {
        let mut core = lock(&self.core);
        let revision = core.store.revision();
        core.store.compact(revision);
    }

    /// Sends a bookmark to all watches.
    pub fn send_bookmarks(&self) {
        lock(&self.watches).active.iter().for_each(Watch::bookmark);
    }

    /// Adds an admission hook. The server holds its lock while it calls the hook, so the hook must not use the server.
    pub fn admit(&self, hook: impl FnMut(&AdmissionRequest<'_>) -> Admission + Send + 'static) {
        lock(&self.core).admission.push(Box::new(hook));
    }

    /// Sets the hook that answers reviews, such as a `TokenReview` or a `SelfSubjectAccessReview`, with a status. The
    /// server holds its lock while it calls the hook.
    pub fn answer_reviews(&self, hook: impl FnMut(&Call, &Value) -> Result<Value, Status> + Send + 'static) {
        lock(&self.core).reviews = Some(Box::new(hook));
    }

    // Observers.

    /// Sets the hook that receives each line of the trace.
    pub fn trace(&self, hook: impl FnMut(&str) + Send + 'static) {
        *lock(&self.trace) = Some(Box::new(hook));
    }

    /// Adds an observer that sees each committed change before any client does. The observer can use the server.
    pub fn observe(&self, observer: impl FnMut(&Change) + Send + 'static) {
        lock(&self.observers).push(Box::new(observer));
    }

    /// Returns the current revision.
    pub fn revision(&self) -> u64 {
        lock(&self.core).store.revision()
    }

    /// Returns the current time.
    pub fn now(&self) -> Timestamp {
        (lock(&self.core).clock)()
    }

    /// Returns all objects.
    pub fn objects(&self) -> Vec<(Key, Arc<Value>)> {
        lock(&self.core).store.all().map(|(key, object)| (key.clone(), object.clone())).collect()
    }

    /// Returns a hash of all objects, which is equal for equal states of two servers with the same seed. The hash does
    /// not depend on resource versions and managed fields.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (key, object) in lock(&self.core).store.all() {
            key.to_string().hash(&mut hasher);
            let mut object = Value::clone(object);
            metadata::remove(&mut object, "resourceVersion");
            metadata::remove(&mut object, "managedFields");
            object.to_string().hash(&mut hasher);
        }
        hasher.finish()
    }

    // Direct access. The actor of these requests is `test`. Interceptors see neither these requests nor those of the
    // simulated components of the cluster.

    /// Returns an object.
    pub fn get(&self, resource: &GroupResource, namespace: Option<&str>, name: &str) -> Option<Arc<Value>> {
        self.get_key(&Key::new(resource.clone(), namespace, name))
    }

    /// Returns an object.
    pub fn get_key(&self, key: &Key) -> Option<Arc<Value>> {
        lock(&self.core).store.get(key)
    }

    /// Returns an object at a revision, if the server still remembers it.
    pub fn get_at(&self, key: &Key, revision: u64) -> Option<Arc<Value>> {
        lock(&self.core).store.get_at(key, revision)
    }

    /// Returns the objects of a resource in a namespace, or in all namespaces.
    pub fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Value>> {
        let core = lock(&self.core);
        let revision = core.store.revision();
        core.store.list(resource, namespace, revision, "").map(|(_, object)| object).collect()
    }

    /// Creates an object.
    ///
    /// # Errors
    /// Returns the response of the API server to an invalid object.
    pub fn create(&self, object: &Value) -> Result<Value, Status> {
        self.request(Verb::Create, object, "", "test")
    }

    /// Replaces an object, through the main endpoint or the endpoint of a subresource.
    ///
    /// # Errors
    /// Returns the response of the API server to an impossible update.
    pub fn replace(&self, object: &Value, subresource: &str) -> Result<Value, Status> {
        self.request(Verb::Update, object, subresource, "test")
    }

    /// Applies an object with forced server-side apply as a field manager.
    ///
    /// # Errors
    /// Returns the response of the API server to an invalid object.
    pub fn apply(&self, object: &Value, manager: &str) -> Result<Value, Status> {
        self.request(Verb::Patch(crate::request::PatchType::Apply), object, "", manager)
    }

    /// Changes an object. `change` can change all fields, including the status.
    ///
    /// # Errors
    /// Returns the response of the API server if the object is missing or the change is invalid.
    pub fn edit(&self, key: &Key, change: impl FnOnce(&mut Value)) -> Result<Value, Status> {
        let missing = || Status::not_found(&key.resource.group, &key.resource.resource, key.name());
        let mut object = Value::clone(&*self.get_key(key).ok_or_else(missing)?);
        change(&mut object);
        let updated = self.replace(&object, "")?;
        let has_status = {
            let core = lock(&self.core);
            core.resources.get(&key.resource).is_some_and(|resource| resource.has_status(&resource.storage))
        };
        if !has_status || updated.get("status") == object.get("status") {
            return Ok(updated);
        }
        let mut changed = updated;
        if let (Value::Object(changed), Some(status)) = (&mut changed, object.get("status")) {
            changed.insert("status".to_owned(), status.clone());
        }
        self.replace(&changed, "status")
    }

    /// Deletes an object as a client with default options does.
    ///
    /// # Errors
    /// Returns the response of the API server if the object is missing.
    pub fn delete(&self, key: &Key) -> Result<(), Status> {
        self.delete_as(key, "test", &Value::Null)
    }

    pub(crate) fn delete_as(&self, key: &Key, actor: &str, options: &Value) -> Result<(), Status> {
        let body = if options.is_null() { Vec::new() } else { options.to_string().into_bytes() };
        let call = self.call_for(Verb::Delete, key, "", actor, body)?;
        self.handle(&call).map(drop)
    }

    /// Changes an object without a check of its content, as a component of the cluster.
    pub(crate) fn edit_metadata(&self, key: &Key, actor: &str, change: impl FnOnce(&mut Value)) -> Result<(), Status> {
        let missing = || Status::not_found(&key.resource.group, &key.resource.resource, key.name());
        let old = self.get_key(key).ok_or_else(missing)?;
        let mut object = Value::clone(&old);
        change(&mut object);
        let is_removed = metadata::is_deleting(&object)
            && metadata::finalizers(&object).is_empty()
            && metadata::get(&object, "deletionGracePeriodSeconds").and_then(Value::as_i64) == Some(0);
        if is_removed {
            self.put_unchecked(key, None, actor);
        } else if object != *old {
            self.put_unchecked(key, Some(object), actor);
        }
        Ok(())
    }

    /// Stores a version of an object without any check, or removes the object.
    pub fn put_unchecked(&self, key: &Key, object: Option<Value>, actor: &str) {
        lock(&self.core).commit(key.clone(), object, actor);
        self.publish();
    }

    /// Sends a write of a component of the cluster.
    pub(crate) fn request(&self, verb: Verb, object: &Value, subresource: &str, actor: &str) -> Result<Value, Status> {
        let text = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
        let id = {
            let core = lock(&self.core);
            core.resources
                .of_kind(text("apiVersion"), text("kind"))
                .map(|resource| (resource.id.clone(), resource.is_namespaced))
        };
        let Some((id, is_namespaced)) = id else { return Err(Status::unknown_path()) };
        let namespace = match metadata::text(object, "namespace") {
            "" => "default",
            namespace => namespace,
        };
        let name = if verb == Verb::Create { "" } else { metadata::text(object, "name") };
        let key = Key::new(id, is_namespaced.then_some(namespace), name);
        let mut call = self.call_for(verb, &key, subresource, actor, object.to_string().into_bytes())?;
        let api_version = text("apiVersion");
        api_version.rsplit('/').next().unwrap_or_default().clone_into(&mut call.version);
        let manager = [("fieldManager", actor), ("force", "true")];
        let used = if verb == Verb::Patch(crate::request::PatchType::Apply) { 2 } else { 1 };
        call.query = manager.iter().take(used).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        self.handle(&call).map(|reply| reply.body)
    }

    fn call_for(&self, verb: Verb, key: &Key, subresource: &str, actor: &str, body: Vec<u8>) -> Result<Call, Status> {
        let version = {
            let core = lock(&self.core);
            core.resources.get(&key.resource).map(|resource| resource.storage.clone())
        };
        Ok(Call {
            sequence: self.next_sequence(),
            actor: actor.to_owned(),
            verb,
            resource: key.resource.clone(),
            version: version.ok_or_else(Status::unknown_path)?,
            namespace: key.namespace().unwrap_or_default().to_owned(),
            name: key.name().to_owned(),
            subresource: subresource.to_owned(),
            is_dry_run: false,
            path: String::new(),
            query: BTreeMap::new(),
            accept: String::new(),
            user_agent: String::new(),
            authorization: String::new(),
            body,
        })
    }

    fn next_sequence(&self) -> u64 {
        let mut sequence = lock(&self.sequence);
        *sequence += 1;
        *sequence
    }

    pub(crate) fn resource_of(&self, api_version: &str, kind: &str) -> Option<(GroupResource, bool)> {
        let core = lock(&self.core);
        core.resources.of_kind(api_version, kind).map(|resource| (resource.id.clone(), resource.is_namespaced))
    }

    // Requests.

    fn handle(&self, call: &Call) -> Result<Reply, Status> {
        let view = lock(&self.watches).views.get(&call.actor).copied();
        let result = lock(&self.core).handle(call, view);
        let now = self.now();
        self.write_trace(|| match &result {
            Ok(reply) => {
                let version = metadata::text(&reply.body, "resourceVersion");
                format!(
                    "{now} {call} -> {}{}",
                    reply.code,
                    if version.is_empty() { String::new() } else { format!(" rv={version}") }
                )
            }
            Err(status) => format!("{now} {call} -> {} {}", status.code, status.reason),
        });
        self.publish();
        result
    }

    fn write_trace(&self, line: impl FnOnce() -> String) {
        // A hook that itself causes a request produces no further lines.
        if let Ok(mut hook) = self.trace.try_lock()
            && let Some(hook) = hook.as_mut()
        {
            hook(&line());
        }
    }

    /// Shows the committed changes to the observers, and then to the watches.
    fn publish(&self) {
        loop {
            // If an observer changes objects, its caller shows the new changes.
            let mut observers = match self.observers.try_lock() {
                Ok(observers) => observers,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            let changes = std::mem::take(&mut lock(&self.core).changes);
            if changes.is_empty() {
                return;
            }
            for change in &changes {
                observers.iter_mut().for_each(|observer| observer(change));
            }
            drop(observers);
            let mut watches = lock(&self.watches);
            watches.active.retain(|watch| !watch.is_over());
            let Watches { active, views, .. } = &mut *watches;
            for watch in active.iter_mut().filter(|watch| !views.contains_key(&watch.actor)) {
                let known = watch.revision;
                changes.iter().filter(|change| change.revision > known).for_each(|change| watch.notify(change));
            }
        }
    }

    fn start_watch(&self, call: &Call) -> Result<WatchBody, Status> {
        let core = lock(&self.core);
        let mut watches = lock(&self.watches);
        let view = watches.views.get(&call.actor).copied();
        let delivery = watches.delivery_for(&call.actor, &call.resource);
        let (watch, mut body) = Watch::start(&core, call, delivery, view)?;
        watches.active.push(watch);
        drop((watches, core));
        let now = self.now();
        self.write_trace(|| format!("{now} {call} -> watching since {:?}", call.parameter("resourceVersion")));
        let (server, actor) = (self.clone(), call.actor.clone());
        body.set_on_event(move |event| {
            let now = server.now();
            server.write_trace(|| format!("{now} {actor} received {event}"));
        });
        Ok(body)
    }

    async fn respond(self, actor: String, request: Request<Body>) -> Result<Response<ResponseBody>, Disconnected> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await.map_err(|_| Disconnected)?;
        let call = match Call::parse(self.next_sequence(), &actor, &parts, body.to_vec()) {
            Ok(call) => call,
            Err(status) => return Ok(error_response(&status)),
        };
        match self.decide_before(&call) {
            Before::Pass => {}
            Before::Fail(status) => return Ok(error_response(&status)),
            Before::Delay(delay) => tokio::time::sleep(delay).await,
            Before::DelayInNetwork(delay) => {
                let server = self.clone();
                let late = tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    server.answer(call).await
                });
                return late.await.unwrap_or(Err(Disconnected));
            }
            Before::Hang => return std::future::pending().await,
            Before::Disconnect => return Err(Disconnected),
        }
        self.answer(call).await
    }

    fn decide_before(&self, call: &Call) -> Before {
        let mut interceptors = std::mem::take(&mut lock(&self.hooks).interceptors);
        let decisions = interceptors.iter_mut().map(|interceptor| interceptor.before(call));
        let decision = decisions.into_iter().find(|decision| !matches!(decision, Before::Pass)).unwrap_or(Before::Pass);
        self.put_back(interceptors);
        if !matches!(decision, Before::Pass) {
            let now = self.now();
            self.write_trace(|| format!("{now} {call} !! {decision:?}"));
        }
        decision
    }

    fn put_back(&self, mut interceptors: Vec<Box<dyn Interceptor>>) {
        let mut hooks = lock(&self.hooks);
        // An interceptor may have added others.
        interceptors.append(&mut hooks.interceptors);
        hooks.interceptors = interceptors;
    }

    async fn answer(self, call: Call) -> Result<Response<ResponseBody>, Disconnected> {
        let result = match call.verb {
            Verb::Watch => self.start_watch(&call).map(|body| response(200, ResponseBody::Watch(body))),
            _ => self.handle(&call).map(|reply| {
                let text = match (&reply.body, call.verb, Representation::of(&call)) {
                    (Value::String(text), _, _) => text.clone(),
                    (body, _, _) => body.to_string(),
                };
                response(reply.code, ResponseBody::Text(Some(text.into())))
            }),
        };
        let outcome = result.as_ref().map(|_| self.revision()).map_err(Clone::clone);
        let mut interceptors = std::mem::take(&mut lock(&self.hooks).interceptors);
        let decisions = interceptors.iter_mut().map(|interceptor| interceptor.after(&call, &outcome));
        let decision = decisions.into_iter().find(|decision| !matches!(decision, After::Reply)).unwrap_or(After::Reply);
        self.put_back(interceptors);
        if !matches!(decision, After::Reply) {
            let now = self.now();
            self.write_trace(|| format!("{now} {call} !! reply {decision:?}"));
        }
        match decision {
            After::Reply => {}
            After::Delay(delay) => tokio::time::sleep(delay).await,
            After::Hang => return std::future::pending().await,
            After::Disconnect => return Err(Disconnected),
        }
        Ok(result.unwrap_or_else(|status| error_response(&status)))
    }
}

fn error_response(status: &Status) -> Response<ResponseBody> {
    let mut error = response(status.code, ResponseBody::Text(Some(status.to_json().to_string().into())));
    if let Some(seconds) = status.retry_after {
        error.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
    }
    error
}

fn response(code: u16, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    let json = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, json);
    response
}

/// Body of a response.
pub enum ResponseBody {
    #[doc(hidden)]
    Text(Option<Bytes>),
    #[doc(hidden)]
    #[expect(private_interfaces, reason = "only this crate creates bodies")]
    Watch(WatchBody),
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Disconnected;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Disconnected>>> {
        match self.get_mut() {
            ResponseBody::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            ResponseBody::Watch(body) => Pin::new(body).poll_frame(context),
        }
    }
}

/// Service of one client.
#[derive(Clone)]
pub struct Service {
    server: Server,
    actor: String,
}

impl tower::Service<Request<Body>> for Service {
    type Response = Response<ResponseBody>;
    type Error = Disconnected;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Disconnected>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Disconnected>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.server.clone().respond(self.actor.clone(), request))
    }
}
