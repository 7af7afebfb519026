//! Recent events for people: a bounded ring in memory.

use std::collections::VecDeque;

use berth_spec::{DeploymentName, Event, Namespace, shortened};

/// Events kept, about 500 KiB; 24 MiB where each message is as long as it may be. Holds last night's failure even after a burst of
/// evictions.
const MAX_EVENTS: usize = 4_096;

/// Reason of an event that repeats a line of the audit log.
pub(crate) const AUDITED: &str = "Audited";

/// Events by what they are about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum EventScope {
    /// Every event.
    #[default]
    All,
    /// Those about this namespace, and those about none.
    NamespaceAndSystem(Namespace),
    /// Those about deployments and functions of this namespace: a role that is limited to it learns nothing of the whole system, nor who the
    /// people are that asked for changes.
    Namespace(Namespace),
}

impl EventScope {
    fn covers(&self, event: &Event) -> bool {
        let of = event.namespace();
        match self {
            Self::All => true,
            Self::NamespaceAndSystem(namespace) => of.is_none_or(|of| of == namespace.as_str()),
            Self::Namespace(namespace) => of == Some(namespace.as_str()) && event.reason != AUDITED,
        }
    }
}

/// The events that a caller asks for. By default all that are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Only those about these.
    pub scope: EventScope,
    /// Only those about this deployment.
    pub deployment: Option<DeploymentName>,
    /// Only those about the function of this key.
    pub function: Option<String>,
    /// Only those after this number: what the previous page said.
    pub after: u64,
    /// At most so many, the newest; 0 means all that are kept.
    pub limit: usize,
}

/// Some events, oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventPage {
    /// The events with their numbers, which count up by one within a term.
    pub events: Vec<(u64, Event)>,
    /// The number of the last event there is: where to go on.
    pub last: u64,
}

/// The last [`MAX_EVENTS`] events, with numbers. Gone with the term of the controller.
#[derive(Debug, Default)]
pub(crate) struct EventRing {
    events: VecDeque<Event>,
    /// The number of the newest event; the first one has 1.
    last: u64,
}

impl EventRing {
    pub(crate) fn push(&mut self, event: Event) {
        let event = Event { message: shortened(event.message, Event::MAX_MESSAGE), ..event };
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
        self.last += 1;
    }

    pub(crate) fn page(&self, filter: &EventFilter) -> EventPage {
        let limit = if filter.limit == 0 { MAX_EVENTS } else { filter.limit };
        let named = |event: &Event| {
            filter.deployment.as_ref().is_none_or(|name| event.deployment.as_ref() == Some(name))
                && filter.function.as_ref().is_none_or(|name| event.function.as_ref() == Some(name))
        };
        let numbers = (1..=self.last).rev();
        let mut events: Vec<(u64, Event)> = numbers
            .zip(self.events.iter().rev())
            .take_while(|(number, _)| *number > filter.after)
            .filter(|(_, event)| filter.scope.covers(event) && named(event))
            .take(limit)
            .map(|(number, event)| (number, event.clone()))
            .collect();
        events.reverse();
        EventPage { events, last: self.last }
    }
}

#[cfg(test)]
mod tests {
    use berth_spec::{Time, event::Severity};

    use super::*;

    fn event(deployment: &str, at: u64) -> Event {
        Event {
            at: Time(at),
            severity: Severity::Normal,
            reason: "Placed",
            message: String::new(),
            deployment: DeploymentName::new(deployment).ok(),
            worker: None,
            function: None,
        }
    }

    #[test]
    fn the_ring_keeps_the_newest_and_numbers_go_on() {
        let mut ring = EventRing::default();
        for at in 0..MAX_EVENTS as u64 + 10 {
            ring.push(event(if at % 2 == 0 { "even" } else { "odd" }, at));
        }
        let all = ring.page(&EventFilter::default());
        assert_eq!((all.events.len(), all.events[0].0, all.last), (MAX_EVENTS, 11, MAX_EVENTS as u64 + 10));
        let odd = EventFilter { deployment: DeploymentName::new("odd").ok(), limit: 3, ..EventFilter::default() };
        let times: Vec<u64> = ring.page(&odd).events.iter().map(|(_, event)| event.at.0).collect();
        assert_eq!(times, [4101, 4103, 4105]);
        let none = EventFilter { after: all.last, ..EventFilter::default() };
        assert!(ring.page(&none).events.is_empty());
    }

    #[test]
    fn a_message_of_any_length_takes_a_bounded_place() {
        let mut ring = EventRing::default();
        ring.push(Event { message: "x".repeat(1 << 20), ..event("iris", 1) });
        let page = ring.page(&EventFilter::default());
        assert!(page.events[0].1.message.len() <= Event::MAX_MESSAGE);
    }

    #[test]
    fn events_of_a_function_are_found_by_its_name() {
        let mut ring = EventRing::default();
        for (at, function) in ["words", "pixels", "words"].into_iter().enumerate() {
            ring.push(Event { function: Some(function.to_owned()), ..event("", at as u64) });
        }
        // A deployment of the same name is another thing.
        ring.push(event("words", 3));
        let times = |scope: EventScope| -> Vec<u64> {
            let filter = EventFilter { scope, function: Some("words".to_owned()), ..EventFilter::default() };
            ring.page(&filter).events.iter().map(|(_, event)| event.at.0).collect()
        };
        assert_eq!(times(EventScope::All), [0, 2]);
        assert_eq!(times(EventScope::NamespaceAndSystem(Namespace::DEFAULT)), [0, 2]);
        assert_eq!(times(EventScope::Namespace(Namespace::DEFAULT)), [0, 2]);
        let team = Namespace::new("team").expect("a namespace");
        assert_eq!(times(EventScope::Namespace(team.clone())), [0; 0]);
        ring.push(Event { function: Some("team/words".to_owned()), ..event("", 4) });
        let filter = EventFilter { scope: EventScope::Namespace(team), ..EventFilter::default() };
        let found: Vec<u64> = ring.page(&filter).events.iter().map(|(_, event)| event.at.0).collect();
        assert_eq!(found, [4], "that of the other namespace is another function");
    }

    #[test]
    fn a_namespace_alone_tells_nothing_of_others_or_of_the_system() {
        let mut ring = EventRing::default();
        for (at, deployment) in ["iris", "team/iris", "", "team/wine"].into_iter().enumerate() {
            ring.push(event(deployment, at as u64));
        }
        // Who asked for a change is for those who see all of it.
        ring.push(Event { reason: AUDITED, ..event("team/wine", 4) });
        let team = Namespace::new("team").expect("a namespace");
        for (scope, times) in [
            (EventScope::All, vec![0, 1, 2, 3, 4]),
            (EventScope::NamespaceAndSystem(team.clone()), vec![1, 2, 3, 4]),
            (EventScope::Namespace(team), vec![1, 3]),
            (EventScope::Namespace(Namespace::DEFAULT), vec![0]),
        ] {
            let page = ring.page(&EventFilter { scope: scope.clone(), ..EventFilter::default() });
            let found: Vec<u64> = page.events.iter().map(|(_, event)| event.at.0).collect();
            assert_eq!((found, page.last), (times, 5), "{scope:?}");
        }
    }
}
