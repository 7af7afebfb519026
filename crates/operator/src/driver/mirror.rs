//! A copy of the watched objects. Its one writer is the driver's loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::{core::DynamicObject, runtime::watcher::Event};
use serde_json::Value;

use super::kind::{Key, Kind};
use crate::render::EXECUTOR;

/// The objects, and which kinds are all here.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    objects: BTreeMap<Key, Arc<Value>>,
    /// The keys that a list under way has named so far.
    listing: BTreeMap<Kind, BTreeSet<Key>>,
    complete: BTreeSet<Kind>,
    counts: BTreeMap<Kind, usize>,
}

impl Mirror {
    /// Takes an event in. Returns the objects that it changed.
    pub(super) fn on(&mut self, kind: Kind, event: Event<DynamicObject>) -> Vec<Key> {
        match event {
            Event::Init => {
                self.listing.insert(kind, BTreeSet::new());
                Vec::new()
            }
            Event::InitApply(object) => {
                let keys = self.put(kind, object);
                self.listing.entry(kind).or_default().extend(keys.iter().cloned());
                keys
            }
            Event::InitDone => {
                self.complete.insert(kind);
                let listed = self.listing.remove(&kind).unwrap_or_default();
                let gone = |key: &&Key| key.kind == kind && !listed.contains(*key);
                let gone: Vec<Key> = self.objects.keys().filter(gone).cloned().collect();
                for key in &gone {
                    self.remove(key);
                }
                gone
            }
            Event::Apply(object) => self.put(kind, object),
            Event::Delete(object) => {
                let key = Key::of(kind, &serde_json::json!({ "metadata": object.metadata }));
                self.remove(&key);
                vec![key]
            }
        }
    }

    /// True once each kind was listed: before, an object that is not here may be there.
    pub(super) fn is_complete(&self, kinds: &[Kind]) -> bool {
        kinds.iter().all(|kind| self.complete.contains(kind))
    }

    /// The objects that a model may have: those of its name, and the ConfigMaps of its executor.
    pub(super) fn of_model(&self, model: &Key) -> Vec<&Value> {
        let named = [Kind::Deployment, Kind::Service, Kind::Budget, Kind::Autoscaler, Kind::OlderAutoscaler];
        let named = named.into_iter().filter_map(|kind| self.get(&model.sibling(kind)));
        let first = Key { kind: Kind::ConfigMap, name: format!("{}{EXECUTOR}", model.name), ..model.clone() };
        let begins = first.name.clone();
        let maps = self.objects.range(first..).take_while(move |(key, _)| {
            key.kind == Kind::ConfigMap && key.namespace == model.namespace && key.name.starts_with(&begins)
        });
        named.chain(maps.map(|(_, object)| object)).map(|object| &**object).collect()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<Value>> {
        self.objects.get(key)
    }

    /// Objects of a kind.
    pub(super) fn count(&self, kind: Kind) -> usize {
        self.counts.get(&kind).copied().unwrap_or_default()
    }

    fn put(&mut self, kind: Kind, mut object: DynamicObject) -> Vec<Key> {
        // The largest part of an object, and nothing that is decided depends on it.
        object.metadata.managed_fields = None;
        // Watches name the type of each object, lists do not.
        object.types = Some(kind.type_meta());
        let Ok(object) = serde_json::to_value(object) else { return Vec::new() };
        let key = Key::of(kind, &object);
        if self.objects.insert(key.clone(), Arc::new(object)).is_none() {
            *self.counts.entry(kind).or_default() += 1;
        }
        vec![key]
    }

    fn remove(&mut self, key: &Key) {
        if self.objects.remove(key).is_some() {
            *self.counts.entry(key.kind).or_default() -= 1;
        }
    }
}
