//! Watches: deployments and events as they change, for both faces.
//!
//! ```text
//! Handle::watch ──event──▶ WatchEvent ──▶ NDJSON line | gRPC message
//!       └─ nothing for a while ──▶ BOOKMARK, so that both sides notice a dead connection
//! ```
//! A watch ends with an `ERROR` (list again) or when the control plane stops.

use std::{net::IpAddr, sync::Arc, time::Duration};

use berth_peer::port::{AddressLimit, AddressPlace, HolderLimit, HolderPlace};
use berth_spec::{Class, Namespace};
use berth_wire::api::{Bookmark, EventWatch, WatchEvent};
use futures::{Stream, StreamExt, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{MissedTickBehavior, interval, timeout},
};

use super::{error::ApiError, selector::LabelSelector, service::Service, view};
use crate::{
    events::EventFilter,
    handle::{self, WatchRequest, WatchStream},
    store::Rev,
};

/// Silence after which a bookmark is sent. Shorter than the minute after which proxies cut idle connections.
const SILENCE: Duration = Duration::from_secs(20);

/// Interval between checks for new events. Feels immediate in `berth get events --watch`.
const EVENTS_EVERY: Duration = Duration::from_millis(500);

/// Watches at once, of deployments and of events. Each holds a page of what there is, or looks for events twice a second: more than all the
/// commands that wait for something.
const WATCHES: usize = 2_048;

/// Watches at once of one address, which leaves the others as many.
const OF_ADDRESS: usize = WATCHES / 2;

/// Watches at once of one principal, wherever it asks from: room for its dashboards and for a fleet of commands that wait, and one who
/// reads alone leaves most to the others.
const OF_PRINCIPAL: usize = WATCHES / 8;

/// The bounds on open watches: [`WATCHES`] in all, [`OF_ADDRESS`] of one address, [`OF_PRINCIPAL`] of one principal.
pub(super) struct WatchPlaces {
    all: Arc<Semaphore>,
    addresses: Arc<AddressLimit>,
    principals: Arc<HolderLimit<Arc<str>>>,
}

/// The place of one watch. Counts until it is dropped.
#[derive(Debug)]
struct WatchPlace {
    _of_principal: Option<HolderPlace<Arc<str>>>,
    _of_address: Option<AddressPlace>,
    _of_all: OwnedSemaphorePermit,
}

/// Reader of a watch.
#[derive(Debug, Default)]
pub(crate) struct WatchReader {
    /// `None`: its connection has gone.
    pub(crate) address: Option<IpAddr>,
    /// Name of the principal; `None`: no token is asked for.
    pub(crate) principal: Option<Arc<str>>,
}

impl Default for WatchPlaces {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(WATCHES)),
            addresses: AddressLimit::new(OF_ADDRESS),
            principals: HolderLimit::new(OF_PRINCIPAL),
        }
    }
}

impl WatchPlaces {
    fn take(&self, reader: &WatchReader) -> Result<WatchPlace, ApiError> {
        let full = |message: String| {
            let class = Class::Waiting { retry_in: Duration::from_secs(10) };
            ApiError::new(class, format!("{message}: end one, or try again later"))
        };
        let of_all = Arc::clone(&self.all).try_acquire_owned();
        let of_all = of_all.map_err(|_| full(format!("{WATCHES} watches are open")))?;
        let of_address = match reader.address {
            None => None,
            Some(address) => {
                let place = self.addresses.place(address);
                Some(place.ok_or_else(|| full(format!("{OF_ADDRESS} watches of your address are open")))?)
            }
        };
        let of_principal = match &reader.principal {
            None => None,
            Some(principal) => {
                let place = self.principals.of(Arc::clone(principal));
                Some(place.ok_or_else(|| full(format!("{OF_PRINCIPAL} watches of {principal} are open")))?)
            }
        };
        Ok(WatchPlace { _of_principal: of_principal, _of_address: of_address, _of_all: of_all })
    }
}

/// Deployments to watch, and the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeploymentWatch {
    pub(crate) namespace: Option<Namespace>,
    pub(crate) selector: LabelSelector,
    pub(crate) from: Option<Rev>,
}

impl DeploymentWatch {
    /// As it stands in a request; empty texts mean: not given.
    pub(crate) fn of(selector: &str, from: &str) -> Result<Self, ApiError> {
        let from = match from {
            "" => None,
            from => Some(version("resourceVersion", from)?),
        };
        Ok(Self { namespace: None, selector: selector.parse()?, from })
    }
}

/// A resource version as it stands in a request.
pub(crate) fn version(field: &str, text: &str) -> Result<Rev, ApiError> {
    text.parse().map(Rev).map_err(|_| {
        let message = format!("{text:?} is not a resource version");
        ApiError::invalid(field, message, "send metadata.resourceVersion as it was received")
    })
}

struct Watching {
    changes: WatchStream,
    selector: LabelSelector,
    /// Latest version that was sent.
    told: Rev,
    ended: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<WatchEvent> {
        while !self.ended {
            let event = match timeout(SILENCE, self.changes.next()).await {
                Err(_) => Some(self.bookmark()),
                Ok(None) => return None,
                Ok(Some(Ok(event))) => self.tell(event),
                Ok(Some(Err(error))) => {
                    self.ended = true;
                    Some(WatchEvent::Error(ApiError::from(error).info()))
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    /// `None`: the selector does not want it.
    fn tell(&mut self, event: handle::WatchEvent) -> Option<WatchEvent> {
        let rev = match &event {
            handle::WatchEvent::Added(found) | handle::WatchEvent::Modified(found) => {
                if !self.selector.matches(&found.deployment.labels) {
                    return None;
                }
                found.rev
            }
            handle::WatchEvent::Deleted { rev, .. } | handle::WatchEvent::Bookmark(rev) => *rev,
        };
        self.told = self.told.max(rev);
        Some(match event {
            handle::WatchEvent::Added(found) => WatchEvent::Added(Box::new(view::deployment(&found))),
            handle::WatchEvent::Modified(found) => WatchEvent::Modified(Box::new(view::deployment(&found))),
            handle::WatchEvent::Deleted { name, rev } => WatchEvent::Deleted(Box::new(view::gone(&name, rev))),
            handle::WatchEvent::Bookmark(_) => self.bookmark(),
        })
    }

    fn bookmark(&self) -> WatchEvent {
        WatchEvent::Bookmark(Bookmark { resource_version: self.told.to_string() })
    }
}

impl Service {
    /// Deployments as they change.
    pub(crate) async fn watch(
        &self,
        watch: DeploymentWatch,
        reader: &WatchReader,
    ) -> Result<impl Stream<Item = WatchEvent> + Send + use<>, ApiError> {
        let place = self.watches.take(reader)?;
        let request = WatchRequest {
            from: watch.from,
            namespace: watch.namespace,
            labels: watch.selector.equalities(),
            ..WatchRequest::default()
        };
        let changes = self.handle.watch(request).await?;
        let told = watch.from.unwrap_or_default();
        let watching = Watching { changes, selector: watch.selector, told, ended: false };
        let events = stream::unfold((watching, place), |(mut watching, place)| async move {
            let event = watching.next().await?;
            Some((event, (watching, place)))
        });
        Ok(events.take_until(self.shutdown.clone().cancelled_owned()))
    }

    /// Events as they happen: those that are kept, then new ones.
    pub(crate) fn watch_events(
        self: &Arc<Self>,
        filter: EventFilter,
        reader: &WatchReader,
    ) -> Result<impl Stream<Item = EventWatch> + Send + use<>, ApiError> {
        let place = self.watches.take(reader)?;
        let mut ticks = interval(EVENTS_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let looking = Some((Arc::clone(self), filter, ticks, place));
        let pages = stream::unfold(looking, |looking| async move {
            let (service, mut filter, mut ticks, place) = looking?;
            ticks.tick().await;
            match service.handle.events(filter.clone()).await {
                Ok(page) => {
                    filter.after = page.last;
                    let shown = |(number, event): &(u64, _)| EventWatch::Added(Box::new(view::event(*number, event)));
                    let events: Vec<EventWatch> = page.events.iter().map(shown).collect();
                    Some((events, Some((service, filter, ticks, place))))
                }
                Err(error) => Some((vec![EventWatch::Error(ApiError::from(error).info())], None)),
            }
        });
        Ok(pages.flat_map(stream::iter).take_until(self.shutdown.clone().cancelled_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(address: &str, principal: Option<&str>) -> WatchReader {
        WatchReader { address: address.parse().ok(), principal: principal.map(Arc::from) }
    }

    /// The message of a refusal.
    fn refused(places: &WatchPlaces, reader: &WatchReader) -> String {
        let refused = places.take(reader).expect_err("it has its share").info();
        assert_eq!((refused.code, refused.reason.as_str()), (503, "Unavailable"));
        refused.message
    }

    #[test]
    fn one_address_leaves_watches_to_others() {
        let [one, other] = ["10.1.2.3", "10.1.0.1"].map(|address| reader(address, None));
        let places = WatchPlaces::default();
        let mut held: Vec<_> = (0..OF_ADDRESS).map(|_| places.take(&one).expect("room")).collect();
        let message = refused(&places, &one);
        assert!(message.contains("1024 watches of your address are open: end one"), "{message}");
        held.extend((0..OF_ADDRESS).map(|_| places.take(&other).expect("room of its own")));
        let message = refused(&places, &WatchReader::default());
        assert!(message.contains("2048 watches are open"), "{message}");
        drop(held.remove(0));
        places.take(&one).expect("one has ended");
    }

    #[test]
    fn one_principal_leaves_watches_to_others_of_its_address() {
        let places = WatchPlaces::default();
        let [here, there] = ["10.1.2.3", "10.1.0.1"].map(|address| reader(address, Some("token:viewer")));
        let mut held: Vec<_> = (0..OF_PRINCIPAL).map(|_| places.take(&here).expect("room")).collect();
        for reader in [&here, &there] {
            let message = refused(&places, reader);
            assert!(message.contains("256 watches of token:viewer are open: end one"), "{message}");
        }
        held.push(places.take(&reader("10.1.2.3", Some("token:admin"))).expect("room of its own"));
        // Who was refused holds nothing.
        assert_eq!(places.all.available_permits(), WATCHES - held.len());
        drop(held.remove(0));
        places.take(&there).expect("one has ended");
    }
}
