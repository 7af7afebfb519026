//! A copy of the watched objects. Its one writer is the driver's loop.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::{core::DynamicObject, runtime::watcher::Event};
use serde_json::Value;

use super::kind::{Key, Kind};
use crate::render::{EXECUTOR, PICKER, PICKER_OF};

/// The objects, and which kinds are all here.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    objects: BTreeMap<Key, Arc<Value>>,
    /// The keys that a list under way has named so far.
    listing: BTreeMap<Kind, BTreeSet<Key>>,
    complete: BTreeSet<Kind>,
    /// Kinds whose custom resources are not installed: there are none of them.
    absent: BTreeSet<Kind>,
    /// Kinds that the operator has no right to see, and works without.
    forbidden: BTreeSet<Kind>,
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

    /// The custom resource of a kind is not installed. Returns true if that is new, with the objects that are gone.
    pub(super) fn on_absent(&mut self, kind: Kind) -> (bool, Vec<Key>) {
        let gone: Vec<Key> = self.objects.keys().filter(|key| key.kind == kind).cloned().collect();
        for key in &gone {
            self.remove(key);
        }
        self.listing.remove(&kind);
        self.complete.insert(kind);
        self.forbidden.remove(&kind);
        (self.absent.insert(kind), gone)
    }

    /// The operator has no right to see a kind. Returns true if that is new.
    pub(super) fn on_forbidden(&mut self, kind: Kind) -> bool {
        self.listing.remove(&kind);
        self.complete.insert(kind);
        self.absent.remove(&kind);
        self.forbidden.insert(kind)
    }

    /// The kinds that the cluster has no custom resource for, by name.
    pub(super) fn absent(&self) -> Vec<&'static str> {
        self.absent.iter().map(|kind| kind.name()).collect()
    }

    /// The kinds that the operator has no right to see, by name.
    pub(super) fn forbidden(&self) -> Vec<&'static str> {
        self.forbidden.iter().map(|kind| kind.name()).collect()
    }

    /// True if a kind was thought to be absent or forbidden and is not: all of it is here now.
    pub(super) fn is_back(&mut self, kind: Kind) -> bool {
        self.absent.remove(&kind) | self.forbidden.remove(&kind)
    }

    /// True once the objects of a kind were seen, if there are any.
    pub(super) fn is_listed(&self, kind: Kind) -> bool {
        self.complete.contains(&kind) && !self.absent.contains(&kind) && !self.forbidden.contains(&kind)
    }

    /// The objects of a kind.
    pub(super) fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Key> {
        self.objects.keys().filter(move |key| key.kind == kind)
    }

    /// True once each kind was listed: before, an object that is not here may be there.
    pub(super) fn is_complete(&self, kinds: &[Kind]) -> bool {
        kinds.iter().all(|kind| self.complete.contains(kind))
    }

    /// The asynchronous APIs that a model may have; none of other kinds.
    pub(super) fn async_apis(&self, of: &Key) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        let first = Key { name: format!("{}.", of.name), ..of.sibling(Kind::AsyncApi) };
        (of.kind == Kind::Model).then(|| self.beginning(first)).into_iter().flatten()
    }

    /// The objects of a kind and a namespace whose names begin as this one.
    fn beginning(&self, first: Key) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        let Key { kind, namespace, name } = first.clone();
        self.objects
            .range(first..)
            .take_while(move |(key, _)| key.kind == kind && key.namespace == namespace && key.name.starts_with(&name))
    }

    /// The objects that a model may have: those of its name, those of its picker's, its asynchronous APIs, and the ConfigMaps of its executor.
    pub(super) fn of_model(&self, model: &Key) -> Vec<&Value> {
        let named = [
            Kind::Deployment,
            Kind::Service,
            Kind::Budget,
            Kind::Autoscaler,
            Kind::OlderAutoscaler,
            Kind::Pool,
            Kind::Route,
        ];
        let named = named.into_iter().filter_map(|kind| self.get(&model.sibling(kind)));
        let picker = format!("{}{PICKER}", model.name);
        let of_picker = Kind::OF_PICKER.into_iter().map(|kind| Key { name: picker.clone(), ..model.sibling(kind) });
        // A model may have the name of a picker.
        let is_ours = |one: &&Arc<Value>| one["metadata"]["labels"][PICKER_OF] == model.name;
        let of_picker = of_picker.filter_map(|key| self.get(&key)).filter(is_ours);
        let named: Vec<&Arc<Value>> = named.chain(of_picker).collect();
        let first = Key { name: format!("{}{EXECUTOR}", model.name), ..model.sibling(Kind::ConfigMap) };
        let more = self.beginning(first).chain(self.async_apis(model));
        named.into_iter().chain(more.map(|(_, object)| object)).map(|object| &**object).collect()
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
