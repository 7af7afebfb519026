//! Read access to the membership: a snapshot that changes, and a stream of hints.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    sync::Arc,
    time::Duration,
};

use berth_spec::{Health, Member, RevisionId, WorkerId};
use tokio::sync::{broadcast, mpsc, oneshot, watch};

/// Hints buffered for a slow reader. Older ones are dropped, which is safe because hints are optional.
const HINTS: usize = 1_024;

/// Orders that wait for the membership's loop. More are refused: they are hints, or one word to leave.
const ORDERS: usize = 256;

/// All members that are known, by name, this node among them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberTable {
    members: BTreeMap<WorkerId, (Arc<Member>, Health)>,
    recovering: BTreeSet<WorkerId>,
    leaving: BTreeSet<WorkerId>,
}

/// Health of a member as people see it: [`Health`], with one more state for nodes that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Answers probes.
    Healthy,
    /// Did not answer a probe; being asked through others, and may refute.
    Suspect,
    /// Considered dead.
    Failed,
    /// Was taken for dead and answers again, for less than `Policy::recovering` so far.
    Recovering,
    /// Said that it goes.
    Left,
}

impl MemberTable {
    /// Health of a member, with recovering nodes told apart.
    #[must_use]
    pub fn tier(&self, name: &WorkerId) -> Option<Tier> {
        let (_, health) = self.members.get(name)?;
        Some(match health {
            Health::Alive if self.recovering.contains(name) => Tier::Recovering,
            Health::Alive => Tier::Healthy,
            Health::Suspect => Tier::Suspect,
            Health::Failed => Tier::Failed,
            Health::Left => Tier::Left,
        })
    }

    /// Members that may answer: alive or suspect.
    pub fn there(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.values().filter(|(_, health)| health.is_there()).map(|(member, _)| member)
    }

    /// Members that may answer and were not told to stop, as far as is known.
    pub fn staying(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.there().filter(|member| !self.leaving.contains(&member.name))
    }

    pub(crate) fn set(&mut self, member: Arc<Member>, health: Health) {
        self.members.insert(member.name.clone(), (member, health));
    }

    pub(crate) fn set_leaving(&mut self, leaving: BTreeSet<WorkerId>) {
        self.leaving = leaving;
    }

    pub(crate) fn set_recovering(&mut self, recovering: BTreeSet<WorkerId>) {
        self.recovering = recovering;
    }
}

impl Deref for MemberTable {
    type Target = BTreeMap<WorkerId, (Arc<Member>, Health)>;

    fn deref(&self) -> &Self::Target {
        &self.members
    }
}

/// Notice of one worker to all gateways about a replica, ahead of the controller's route. Best effort: it may be
/// lost.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hint {
    /// The worker that has, or had, the replica.
    pub worker: WorkerId,
    /// Id of the replica's revision.
    pub revision: RevisionId,
    /// True when the replica has become ready, false when it is gone.
    pub ready: bool,
}

/// Request to the membership loop.
#[derive(Debug)]
pub(crate) enum MembershipCommand {
    Say(Hint),
    Announce,
    Leave(oneshot::Sender<()>),
}

/// The members, for reading. Clones see the same.
#[derive(Debug, Clone)]
pub struct Members {
    me: WorkerId,
    table: watch::Receiver<Arc<MemberTable>>,
    hints: broadcast::Sender<Hint>,
    orders: mpsc::Sender<MembershipCommand>,
    rtts: watch::Receiver<Arc<BTreeMap<WorkerId, Duration>>>,
}

/// The writing end: membership has it, and tests that play membership.
#[derive(Debug)]
pub struct MembersWriter {
    table: watch::Sender<Arc<MemberTable>>,
    hints: broadcast::Sender<Hint>,
    pub(crate) orders: mpsc::Receiver<MembershipCommand>,
    rtts: watch::Sender<Arc<BTreeMap<WorkerId, Duration>>>,
}

impl Members {
    /// Members that are set by hand: for tests, and for one process alone. At first there is `me`, alive.
    #[must_use]
    pub fn by_hand(me: Member) -> (Self, MembersWriter) {
        let mut table = MemberTable::default();
        let name = me.name.clone();
        table.set(Arc::new(me), Health::Alive);
        let (table_in, table) = watch::channel(Arc::new(table));
        let (hints, _) = broadcast::channel(HINTS);
        let (orders, orders_out) = mpsc::channel(ORDERS);
        let (rtts_in, rtts) = watch::channel(Arc::default());
        let roster = MembersWriter { table: table_in, hints: hints.clone(), orders: orders_out, rtts: rtts_in };
        (Self { me: name, table, hints, orders, rtts }, roster)
    }

    /// Name of this node.
    #[must_use]
    pub fn me(&self) -> &WorkerId {
        &self.me
    }

    /// The members as they are known now.
    #[must_use]
    pub fn table(&self) -> Arc<MemberTable> {
        Arc::clone(&self.table.borrow())
    }

    /// Changes when the table does. Its value is the table.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<Arc<MemberTable>> {
        self.table.clone()
    }

    /// Hints of other nodes from now on. A reader that lags misses the oldest.
    #[must_use]
    pub fn hints(&self) -> broadcast::Receiver<Hint> {
        self.hints.subscribe()
    }

    /// Tells the others, best effort: where much is said at once, some of it is dropped and counted.
    pub fn say(&self, hint: Hint) {
        // A full queue is the overload in which a hint is worth least.
        let _ = self.orders.try_send(MembershipCommand::Say(hint));
    }

    /// Announces that this node will stop: it still answers, but others should not rely on it
    /// ([`MemberTable::staying`]). Returns once the notice is on its way.
    pub async fn announce(&self) {
        // Membership has ended: nobody is to be told.
        let _ = self.orders.send(MembershipCommand::Announce).await;
    }

    /// Tells the others that this node goes, and returns when a good part of them should have heard it (a few rounds
    /// of gossip, well under a second). Afterwards this node takes no more part.
    pub async fn leave(&self) {
        let (told, left) = oneshot::channel();
        if self.orders.send(MembershipCommand::Leave(told)).await.is_ok() {
            let _ = left.await;
        }
    }

    /// Time to a member and back by gossip, smoothed.
    #[must_use]
    pub fn rtt(&self, name: &WorkerId) -> Option<Duration> {
        self.rtts.borrow().get(name).copied()
    }
}

impl MembersWriter {
    /// Inserts or replaces one member.
    pub fn set(&self, member: Member, health: Health) {
        self.table.send_modify(|table| Arc::make_mut(table).set(Arc::new(member), health));
    }

    /// Sets the health of a member; one that is not known stays unknown.
    pub fn set_health(&self, name: &WorkerId, health: Health) {
        self.table.send_if_modified(|table| {
            let Some((member, before)) = table.get(name) else { return false };
            let (member, changed) = (Arc::clone(member), *before != health);
            if changed {
                Arc::make_mut(table).set(member, health);
            }
            changed
        });
    }

    /// Records that a member will leave.
    pub fn set_leaving(&self, name: &WorkerId) {
        self.table.send_modify(|table| {
            Arc::make_mut(table).leaving.insert(name.clone());
        });
    }

    /// A hint that comes from another node.
    pub fn hint(&self, hint: Hint) {
        // Nobody listens: nothing is lost.
        let _ = self.hints.send(hint);
    }

    pub(crate) fn table(&self) -> Arc<MemberTable> {
        Arc::clone(&self.table.borrow())
    }

    pub(crate) fn publish(&self, table: Arc<MemberTable>) {
        self.table.send_replace(table);
    }

    pub(crate) fn publish_rtts(&self, rtts: BTreeMap<WorkerId, Duration>) {
        self.rtts.send_replace(Arc::new(rtts));
    }
}
