//! Takes in demand: waiting requests, requests in flight, counts. Kept per gateway, so that one that is gone is
//! forgotten at once together with its waiters.

use std::collections::{BTreeMap, BTreeSet};

use berth_spec::{Demand, DeploymentName, GatewayId, Time};

use super::{TrackedDeployment, World, apply::set_in, rate::Rate};

/// Source of demand that no gateway reports: explicit requests to load a deployment. Gateways are numbered from 1.
pub const EXPLICIT_LOADS: GatewayId = GatewayId(0);

/// One gateway's use of a deployment, as it last said.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct GatewayUse {
    /// Requests that are parked.
    pub(crate) waiting: u32,
    /// Requests that are being answered.
    pub(crate) in_flight: u32,
    /// Requests per minute.
    pub(crate) rate: Rate,
}

/// The use of one deployment, by all gateways or by those of a region.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TotalUse {
    /// Requests that are parked for it.
    pub waiting: u32,
    /// Requests that are being answered.
    pub in_flight: u32,
    /// Requests per minute, over the last seconds.
    pub per_minute: f32,
}

impl GatewayUse {
    /// Returns true if there is nothing to remember.
    pub(super) fn is_nothing(&self, now: Time) -> bool {
        self.waiting == 0 && self.in_flight == 0 && self.rate.is_nothing(now)
    }
}

impl World {
    /// Takes in a gateway's report on a deployment's use.
    pub fn demand(&mut self, gateway: GatewayId, demand: &Demand, now: Time) {
        self.clock = self.clock.max(now);
        let name = &demand.deployment;
        let Some(entry) = self.entries.get(name) else { return };
        // The clock of another node may be ahead: nothing was used in the future.
        let last_used = demand.last_used.min(now);
        let moved = entry.last_used < last_used;
        if moved {
            self.forget_idle_evicted(name);
            self.rerank(name, |entry| entry.last_used = last_used);
        }
        let Some(entry) = self.entries.get_mut(name) else { return };
        if demand.waiting == 0 && demand.in_flight == 0 && entry.warm.is_none() {
            return;
        }
        let scalable = entry.deployment.spec.replicas.max > 1;
        let warm = entry.warm_mut();
        let (waiting, in_flight) = (warm.waiting(), warm.in_flight());
        let used = warm.uses.entry(gateway).or_default();
        // Gateways say again and again who waits there: what is placed already needs no further plan, or each miss would cost
        // as much as all that wait.
        let is_placed = warm.record.as_ref().is_some_and(|record| !record.replicas.is_empty());
        let is_news = used.waiting == 0 || !is_placed || self.unplaced.contains(name);
        (used.waiting, used.in_flight) = (demand.waiting, demand.in_flight);
        used.rate.count(demand.requests, now);
        if used.is_nothing(now) {
            warm.uses.remove(&gateway);
        }
        if scalable {
            let busy = warm.in_flight();
            let scaling = warm.copies.scaling.get_or_insert_default();
            scaling.busy.set(busy, now);
            scaling.marks.mark(last_used);
        }
        let released = (waiting > 0 && warm.waiting() == 0) || (in_flight > 0 && warm.in_flight() == 0);
        let kept = warm.uses.contains_key(&gateway);
        // Uses from before the page-out may be told after it, by other gateways.
        let is_back = demand.waiting > 0 || warm.paged_out.is_some_and(|asked| asked < last_used);
        let was_paged_out = is_back && warm.paged_out.take().is_some();
        set_in(&mut self.waiting, name, warm.waiting() > 0);
        self.index_use(gateway, name, kept);
        if demand.waiting > 0 {
            if is_news || was_paged_out {
                self.touch(name);
            }
        } else if released {
            // Nobody hurries for that, but idleness counts from now, and others may want its memory.
            self.set_wake(name, Some(last_used));
        }
        if scalable {
            self.judge(name, now);
        }
    }

    fn index_use(&mut self, gateway: GatewayId, name: &DeploymentName, kept: bool) {
        if kept {
            self.used_by.entry(gateway).or_default().insert(name.clone());
        } else if let Some(names) = self.used_by.get_mut(&gateway) {
            names.remove(name);
        }
    }

    /// A gateway is connected; `region` is its own.
    pub fn set_gateway(&mut self, gateway: GatewayId, region: Option<String>) {
        self.gateways.insert(gateway, region);
    }

    /// Removes a gateway that is gone, with the demand of its waiting requests.
    pub fn forget_gateway(&mut self, gateway: GatewayId) {
        self.gateways.remove(&gateway);
        let users: BTreeSet<DeploymentName> = self.used_by.remove(&gateway).unwrap_or_default();
        let now = self.clock;
        for name in &users {
            let Some(warm) = self.entries.get_mut(name).and_then(|entry| entry.warm.as_mut()) else { continue };
            warm.uses.remove(&gateway);
            let busy = warm.in_flight();
            if let Some(scaling) = &mut warm.copies.scaling {
                scaling.busy.set(busy, now);
            }
            set_in(&mut self.waiting, name, warm.waiting() > 0);
        }
        self.touch_each(&users);
    }

    /// Present use of a deployment, by all gateways.
    #[must_use]
    pub fn used(&self, name: &DeploymentName, now: Time) -> TotalUse {
        self.used_where(name, now).into_values().fold(TotalUse::default(), TotalUse::add)
    }

    /// The same by the region of the gateway; those without one are under "".
    #[must_use]
    pub fn used_where(&self, name: &DeploymentName, now: Time) -> BTreeMap<&str, TotalUse> {
        self.entries.get(name).map(|entry| self.used_of(entry, now)).unwrap_or_default()
    }

    /// The same where the deployment is at hand.
    pub(crate) fn used_of(&self, entry: &TrackedDeployment, now: Time) -> BTreeMap<&str, TotalUse> {
        let mut regions: BTreeMap<&str, TotalUse> = BTreeMap::new();
        for (gateway, each) in entry.warm.iter().flat_map(|warm| &warm.uses) {
            let region = self.gateways.get(gateway).and_then(Option::as_deref).unwrap_or_default();
            let of = TotalUse { waiting: each.waiting, in_flight: each.in_flight, per_minute: each.rate.quick(now) };
            let sum = regions.entry(region).or_default();
            *sum = sum.add(of);
        }
        regions
    }

    /// Somebody asked that an on-demand deployment be paged out now.
    pub fn page_out(&mut self, name: &DeploymentName, now: Time) {
        if let Some(entry) = self.entries.get_mut(name)
            && entry.deployment.spec.replicas.on_demand()
            && entry.record().is_some()
        {
            entry.warm_mut().paged_out = Some(now);
            self.touch(name);
        }
    }
}

impl TotalUse {
    fn add(self, other: Self) -> Self {
        Self {
            waiting: self.waiting.saturating_add(other.waiting),
            in_flight: self.in_flight.saturating_add(other.in_flight),
            per_minute: self.per_minute + other.per_minute,
        }
    }
}
