//! Collects the output of one foca call: packets, timers and events.

use std::time::Duration;

use foca::{Message, Notification, ProbeNumber, Runtime, Timer};

use super::{node::Node, packet::Kind};

/// Event reported by foca.
#[derive(Debug)]
pub(super) enum SwimEvent {
    Up(Node),
    Down(Node),
    /// One number of a node took the place of another.
    Renamed,
    /// No other node is left.
    Alone,
    /// New number of this node, which heard that it is taken for dead.
    Buried,
    /// A packet of this node came.
    Heard(Node),
    Asked(Node, ProbeNumber),
    Answered(Node, ProbeNumber),
    Unanswered,
}

/// Collects the results of one call of foca.
#[derive(Default)]
pub(super) struct SwimOutput {
    pub(super) packets: Vec<(Node, Vec<u8>)>,
    pub(super) timers: Vec<(Duration, Timer<Node>)>,
    pub(super) news: Vec<SwimEvent>,
}

impl Runtime<Node> for SwimOutput {
    fn notify(&mut self, notification: Notification<'_, Node>) {
        let news = match notification {
            Notification::MemberUp(node) => SwimEvent::Up(node.clone()),
            Notification::MemberDown(node) => SwimEvent::Down(node.clone()),
            Notification::Rename(..) => SwimEvent::Renamed,
            Notification::Idle => SwimEvent::Alone,
            Notification::Rejoin(_) => SwimEvent::Buried,
            Notification::DataReceived(header) => {
                if let Message::Ack(probe) = header.message {
                    self.news.push(SwimEvent::Answered(header.src.clone(), probe));
                }
                SwimEvent::Heard(header.src.clone())
            }
            Notification::DataSent(header) => match header.message {
                Message::Ping(probe) => SwimEvent::Asked(header.dst.clone(), probe),
                _ => return,
            },
            Notification::ProbeFailed(..) => SwimEvent::Unanswered,
            Notification::Active | Notification::Defunct => return,
        };
        self.news.push(news);
    }

    fn send_to(&mut self, to: Node, data: &[u8]) {
        let mut packet = Vec::with_capacity(1 + data.len());
        packet.push(Kind::Swim as u8);
        packet.extend_from_slice(data);
        self.packets.push((to, packet));
    }

    fn submit_after(&mut self, event: Timer<Node>, after: Duration) {
        self.timers.push((after, event));
    }
}
