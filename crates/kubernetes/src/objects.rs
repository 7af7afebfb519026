//! A copy of the objects that are followed. Its one writer is the driver's loop.
//!
//! ```text
//! Unknown ──listed──▶ Listed ◀──listed──┐
//!    │                  │  ▲            │
//!    └──── refused ─────┴──┴─▶ Failing ─┤       objects stay as they were last seen
//!    └──── no such kind ───▶ Absent ────┘       there are none
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use berth_spec::manifest::ManifestDeployment;
use kube::{core::DynamicObject, runtime::watcher::Event};
use serde_json::Value;

use crate::{kind::Kind, plan::convert, runtimes::Runtime};

/// The kind, namespace and name of an object, of which there is one at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.name(), self.namespace, self.name)
    }
}

/// An object, as far as decisions depend on it.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) generation: i64,
    pub(crate) uid: String,
    pub(crate) status: Value,
    pub(crate) content: Content,
}

/// The meaning of an object.
#[derive(Debug, PartialEq)]
pub(crate) enum Content {
    /// A model, or the fields for which it is none, in one line.
    Model(Result<Box<ManifestDeployment>, String>),
    Runtime(Runtime),
    /// A route, as the API server has it.
    Route(Value),
    /// Nothing of a fleet's: a model that has pods of its own.
    Nothing,
}

/// Knowledge about the objects of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum KindState {
    /// Nobody has answered yet.
    #[default]
    Unknown,
    /// All of them are here.
    Listed,
    /// The custom resource is not installed.
    Absent,
    /// The API server does not answer, or refuses: the reason.
    Failing(String),
}

/// News about a kind.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time is held, and most are events")]
pub(crate) enum WatchUpdate {
    Event(Event<DynamicObject>),
    Absent,
    Failing(String),
}

/// The effect of news on an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Something else is declared by it.
    Declares,
    /// Its status alone differs.
    Shows,
}

/// The objects, and which kinds are all here.
#[derive(Debug)]
pub(crate) struct Objects {
    /// The kinds that are followed.
    kinds: Vec<Kind>,
    objects: BTreeMap<Key, Object>,
    /// The keys that a list under way has named so far.
    listing: BTreeMap<Kind, BTreeSet<Key>>,
    known: BTreeMap<Kind, KindState>,
}

impl Objects {
    pub(crate) fn of(kinds: Vec<Kind>) -> Self {
        Self { kinds, objects: BTreeMap::new(), listing: BTreeMap::new(), known: BTreeMap::new() }
    }

    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    /// Takes news in. Returns the objects that it changed; empty where a list has become complete without a change, too.
    pub(crate) fn on(&mut self, kind: Kind, news: WatchUpdate) -> Vec<(Key, Effect)> {
        match news {
            WatchUpdate::Failing(reason) => {
                self.known.insert(kind, KindState::Failing(reason));
                Vec::new()
            }
            WatchUpdate::Absent => {
                self.known.insert(kind, KindState::Absent);
                self.listing.remove(&kind);
                self.retain(kind, &BTreeSet::new())
            }
            WatchUpdate::Event(Event::Init) => {
                self.listing.insert(kind, BTreeSet::new());
                Vec::new()
            }
            WatchUpdate::Event(Event::InitApply(object)) => {
                let (key, effect) = self.put(kind, object);
                self.listing.entry(kind).or_default().insert(key.clone());
                effect.map(|effect| (key, effect)).into_iter().collect()
            }
            WatchUpdate::Event(Event::InitDone) => {
                self.known.insert(kind, KindState::Listed);
                let listed = self.listing.remove(&kind).unwrap_or_default();
                self.retain(kind, &listed)
            }
            WatchUpdate::Event(Event::Apply(object)) => {
                self.known.insert(kind, KindState::Listed);
                let (key, effect) = self.put(kind, object);
                effect.map(|effect| (key, effect)).into_iter().collect()
            }
            WatchUpdate::Event(Event::Delete(object)) => {
                let key = key_of(kind, &object);
                self.objects.remove(&key).map(|_| (key, Effect::Declares)).into_iter().collect()
            }
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Object> {
        self.objects.get(key)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Object)> {
        self.objects.iter()
    }

    pub(crate) fn known(&self, kind: Kind) -> &KindState {
        self.known.get(&kind).unwrap_or(&KindState::Unknown)
    }

    /// True once each kind of models was listed or is not there: before, an object that is not here may be there.
    pub(crate) fn is_complete(&self) -> bool {
        let complete = |kind: Kind| matches!(self.known(kind), KindState::Listed | KindState::Absent);
        self.kinds.iter().copied().filter(|kind| kind.is_model()).all(complete)
    }

    /// True once each kind has an answer, though it may be a refusal.
    pub(crate) fn is_answered(&self) -> bool {
        self.kinds.iter().all(|kind| *self.known(*kind) != KindState::Unknown)
    }

    /// A status that was written over `before`. Where a watch has told of another one meanwhile, that one is newer.
    pub(crate) fn wrote(&mut self, key: &Key, before: &Value, status: Value) {
        if let Some(object) = self.objects.get_mut(key).filter(|object| object.status == *before) {
            object.status = status;
        }
    }

    fn put(&mut self, kind: Kind, object: DynamicObject) -> (Key, Option<Effect>) {
        let key = key_of(kind, &object);
        if object.metadata.deletion_timestamp.is_some() {
            // Somebody else's finalizer keeps it: its model goes now.
            let gone = self.objects.remove(&key).map(|_| Effect::Declares);
            return (key, gone);
        }
        let generation = object.metadata.generation.unwrap_or_default();
        let status = object.data.get("status").cloned().unwrap_or_default();
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let object = Object { generation, uid, status, content: convert(kind, &object) };
        let before = self.objects.insert(key.clone(), object);
        let now = &self.objects[&key];
        let effect = match before {
            Some(before) if before.content == now.content && before.generation == now.generation => {
                (before.status != now.status).then_some(Effect::Shows)
            }
            _ => Some(Effect::Declares),
        };
        (key, effect)
    }

    /// Keeps those of a kind that are in `listed`; returns the others.
    fn retain(&mut self, kind: Kind, listed: &BTreeSet<Key>) -> Vec<(Key, Effect)> {
        let gone = |key: &&Key| key.kind == kind && !listed.contains(*key);
        let gone: Vec<Key> = self.objects.keys().filter(gone).cloned().collect();
        for key in &gone {
            self.objects.remove(key);
        }
        gone.into_iter().map(|key| (key, Effect::Declares)).collect()
    }
}

fn key_of(kind: Kind, object: &DynamicObject) -> Key {
    Key {
        kind,
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}
