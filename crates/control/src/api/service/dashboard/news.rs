//! Live news for browsers, as server-sent events.
//!
//! ```text
//! every second: events after the last ─▶ `events`      every other second: Pulse, computed once for all ─▶ `pulse`
//! ```
//! Nothing is queued: a reader's stream looks at the ring of events when the reader takes the next piece. A slow one holds one
//! piece, of [`MOST_EVENTS`] events at most, and skips what left the ring meanwhile.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::body::Bytes;
use berth_spec::Class;
use berth_wire::api::{EventView, Pulse};
use futures::{Stream, stream};
use serde::Serialize;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Interval, MissedTickBehavior, interval},
};

use super::Service;
use crate::{
    api::{error::ApiError, view},
    events::EventFilter,
};

/// Browsers that may watch at a time. Each costs a question to the controller a second.
pub(super) const READERS: usize = 64;

/// The most events in one piece, some tens of KiB: a burst comes in several.
const MOST_EVENTS: usize = 200;

/// Interval between looks: people see a change as it happens.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Age up to which the state of the whole is sent again: older than one look, so that it is made once for all readers.
const PULSE_FOR: Duration = Duration::from_millis(1_500);

struct Reader {
    service: Arc<Service>,
    ticks: Interval,
    /// Number of the last event that was sent.
    after: u64,
    looks: u64,
    /// Pieces of the last look that are not taken yet: at most two.
    pieces: VecDeque<Bytes>,
    _place: OwnedSemaphorePermit,
}

impl Service {
    /// News from now on, or from the event of this number on.
    pub(crate) async fn news(
        self: &Arc<Self>,
        after: Option<u64>,
    ) -> Result<impl Stream<Item = Bytes> + use<>, ApiError> {
        let place = Arc::clone(&self.kept.readers).try_acquire_owned().map_err(|_| {
            let class = Class::Waiting { retry_in: Duration::from_secs(10) };
            ApiError::new(class, format!("{READERS} dashboards watch already: close one, or ask again later"))
        })?;
        let after = match after {
            Some(after) => after,
            None => self.handle.events(EventFilter { limit: 1, ..EventFilter::default() }).await?.last,
        };
        let mut ticks = interval(POLL_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let reader =
            Reader { service: Arc::clone(self), ticks, after, looks: 0, pieces: VecDeque::new(), _place: place };
        let pieces = stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) });
        Ok(futures::StreamExt::take_until(pieces, self.shutdown.clone().cancelled_owned()))
    }

    /// The state of the whole, computed once for all readers.
    async fn pulse(&self) -> Result<Arc<Pulse>, ApiError> {
        self.kept.pulse.get(PULSE_FOR, || self.look_at_the_whole()).await
    }

    async fn look_at_the_whole(&self) -> Result<Pulse, ApiError> {
        let (nodes, activity) = (self.known_nodes().await?, self.recent_activity().await?);
        let alive = nodes.items.iter().filter(|node| node.status.health == "Alive").count();
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let sum = |figure: fn(&berth_wire::api::ModelTop) -> f64| activity.models.values().map(figure).sum();
        Ok(Pulse {
            leader: nodes.status.leader,
            nodes: count(nodes.items.len()),
            alive: count(alive),
            requests_per_second: sum(|top| top.requests_per_second),
            failures_per_second: sum(|top| top.failures_per_second),
            in_flight: activity.models.values().map(|top| top.in_flight).sum(),
        })
    }
}

impl Reader {
    /// The next piece; `None` where the controller is gone.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Some(piece);
            }
            self.ticks.tick().await;
            self.look().await?;
        }
    }

    async fn look(&mut self) -> Option<()> {
        let filter = EventFilter { after: self.after, limit: MOST_EVENTS, ..EventFilter::default() };
        let page = self.service.handle.events(filter).await.ok()?;
        let events: Vec<EventView> = page.events.iter().map(|(number, event)| view::event(*number, event)).collect();
        self.after = page.last;
        if !events.is_empty() {
            self.pieces.push_back(piece("events", Some(page.last), &events)?);
        }
        // Also says that both sides are there.
        if self.looks.is_multiple_of(2) {
            self.pieces.push_back(piece("pulse", None, self.service.pulse().await.ok()?.as_ref())?);
        }
        self.looks += 1;
        Some(())
    }
}

/// One server-sent event. JSON has no line breaks outside of its texts, where they are written `\n`.
fn piece(kind: &str, number: Option<u64>, data: &impl Serialize) -> Option<Bytes> {
    let data = serde_json::to_string(data).ok()?;
    let id = number.map(|number| format!("id: {number}\n")).unwrap_or_default();
    Some(Bytes::from(format!("{id}event: {kind}\ndata: {data}\n\n")))
}
