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
    by_name: BTreeMap<&'w DeploymentName, WorkIndex>,
}

impl<'w> Works<'w> {
    pub(crate) fn contains(&self, name: &DeploymentName) -> bool {
        self.by_name.contains_key(name)
    }

    pub(crate) fn find(&self, name: &DeploymentName) -> Option<WorkIndex> {
        self.by_name.get(name).copied()
    }

    /// Adds one that is not there yet.
    pub(super) fn add(&mut self, work: Work<'w>) {
        let (name, slot) = (work.name(), self.push(Box::new(work)));
        self.by_name.insert(name, slot);
    }

    /// Adds them as the first ones, in the order of their names: much faster than one by one.
    #[expect(clippy::vec_box, reason = "slots hold boxes, so that growing moves pointers and not deployments")]
    pub(super) fn fill(&mut self, all: Vec<Box<Work<'w>>>) {
        let named: Vec<(&'w DeploymentName, WorkIndex)> =
            all.into_iter().map(|work| (work.name(), self.push(work))).collect();
        self.by_name = named.into_iter().collect();
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
        self.by_name.iter().filter_map(|(name, slot)| Some((*name, self.at(*slot)?)))
    }

    /// The same with their numbers.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (WorkIndex, &Work<'w>)> {
        self.by_name.values().filter_map(|slot| Some((*slot, self.at(*slot)?)))
    }
}
