//! The deployments of a plan. Numbered as they come, so that a step that goes through many of them finds each without
//! comparing names; told in the order of their names.

use std::collections::BTreeMap;

use berth_spec::DeploymentName;

use super::Work;

/// The number of a deployment in one plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkIndex(usize);

/// The deployments of a plan.
#[derive(Default)]
pub(crate) struct Works<'w> {
    /// `None` while it is taken out.
    slots: Vec<Option<Box<Work<'w>>>>,
    /// Names that `fill` added, sorted: their numbers are their places.
    filled: Vec<&'w DeploymentName>,
    /// Deployments that `add` added; none after `fill`.
    added: BTreeMap<&'w DeploymentName, WorkIndex>,
}

impl<'w> Works<'w> {
    pub(crate) fn contains(&self, name: &DeploymentName) -> bool {
        self.find(name).is_some()
    }

    pub(crate) fn find(&self, name: &DeploymentName) -> Option<WorkIndex> {
        match self.filled.binary_search(&name) {
            Ok(place) => Some(WorkIndex(place)),
            Err(_) => self.added.get(name).copied(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Adds one that is not there yet.
    pub(super) fn add(&mut self, work: Work<'w>) {
        let (name, slot) = (work.name(), self.push(Box::new(work)));
        self.added.insert(name, slot);
    }

    /// Adds all deployments that there are, in the order of their names: much faster than one by one.
    #[expect(clippy::vec_box, reason = "slots hold boxes, so that growing moves pointers and not deployments")]
    pub(super) fn fill(&mut self, all: Vec<Box<Work<'w>>>) {
        debug_assert!(self.slots.is_empty(), "they have the first numbers");
        debug_assert!(all.is_sorted_by_key(|work| work.name()), "they are found by their order");
        self.filled = all.iter().map(|work| work.name()).collect();
        self.slots = all.into_iter().map(Some).collect();
    }

    fn push(&mut self, work: Box<Work<'w>>) -> WorkIndex {
        let slot = WorkIndex(self.slots.len());
        self.slots.push(Some(work));
        slot
    }

    /// Takes one out to work on it; `None`: it is out already.
    pub(super) fn take(&mut self, slot: WorkIndex) -> Option<Box<Work<'w>>> {
        self.slots.get_mut(slot.0)?.take()
    }

    pub(super) fn put_back(&mut self, slot: WorkIndex, work: Box<Work<'w>>) {
        self.slots[slot.0] = Some(work);
    }

    /// The work of a deployment; `None` while it is taken out.
    pub(crate) fn get(&self, name: &DeploymentName) -> Option<&Work<'w>> {
        self.at(self.find(name)?)
    }

    /// The same with its number.
    pub(crate) fn found(&self, name: &DeploymentName) -> Option<(WorkIndex, &Work<'w>)> {
        let slot = self.find(name)?;
        Some((slot, self.at(slot)?))
    }

    fn at(&self, slot: WorkIndex) -> Option<&Work<'w>> {
        self.slots.get(slot.0)?.as_deref()
    }

    /// Deployments that are not taken out, by name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'w DeploymentName, &Work<'w>)> {
        self.numbered().map(|(_, work)| (work.name(), work))
    }

    /// The same with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (WorkIndex, &Work<'w>)> {
        self.by_name().filter_map(|slot| Some((slot, self.at(slot)?)))
    }

    /// Numbers in the order of names.
    pub(crate) fn by_name(&self) -> impl Iterator<Item = WorkIndex> + use<'_, 'w> {
        (0..self.filled.len()).map(WorkIndex).chain(self.added.values().copied())
    }

    /// The deployments themselves, by name.
    pub(super) fn into_by_name(self) -> impl Iterator<Item = Box<Work<'w>>> + use<'w> {
        let Self { mut slots, filled, added } = self;
        let by_name = (0..filled.len()).map(WorkIndex).chain(added.into_values());
        by_name.filter_map(move |slot| slots.get_mut(slot.0)?.take())
    }
}
