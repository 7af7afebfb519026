//! The pods of a pool, as a watch tells of them: the addresses of those that take requests. No I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;

/// The pods, by name. Its one writer is the watch.
#[derive(Debug, Default)]
pub struct Pods {
    /// The address of each that is ready.
    known: BTreeMap<String, Option<IpAddr>>,
    /// The names that a list under way has named so far.
    listing: BTreeSet<String>,
    is_complete: bool,
}

impl Pods {
    /// Takes an event of the watch. What is there stays until a list is complete.
    pub fn on(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.listing.clear(),
            Event::InitApply(pod) => {
                let name = self.put(&pod);
                self.listing.insert(name);
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                self.known.retain(|name, _| listed.contains(name));
                self.is_complete = true;
            }
            Event::Apply(pod) => drop(self.put(&pod)),
            Event::Delete(pod) => {
                self.known.remove(pod.metadata.name.as_deref().unwrap_or_default());
            }
        }
    }

    /// The addresses of those that are ready, at this port; `None`: not all pods were told yet.
    #[must_use]
    pub fn ready(&self, port: u16) -> Option<BTreeSet<SocketAddr>> {
        let ready = self.known.values().flatten().map(|ip| SocketAddr::new(*ip, port));
        self.is_complete.then(|| ready.collect())
    }

    fn put(&mut self, pod: &Pod) -> String {
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.known.insert(name.clone(), address(pod));
        name
    }
}

/// The address of a pod that takes requests. One that is told to end takes none.
fn address(pod: &Pod) -> Option<IpAddr> {
    let status = pod.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    let is_ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let stays = pod.metadata.deletion_timestamp.is_none();
    status.pod_ip.as_ref().filter(|_| is_ready && stays)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, ip: &str, ready: &str) -> Pod {
        let status = json!({ "podIP": ip, "conditions": [{ "type": "Ready", "status": ready }] });
        serde_json::from_value(json!({ "metadata": { "name": name }, "status": status })).expect("a pod")
    }

    fn ready(pods: &Pods) -> Option<Vec<String>> {
        pods.ready(80).map(|all| all.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn pods_take_requests_while_they_are_ready_and_stay() {
        let mut pods = Pods::default();
        pods.on(Event::Init);
        pods.on(Event::InitApply(pod("a", "10.0.0.1", "True")));
        assert_eq!(ready(&pods), None, "there may be more");
        pods.on(Event::InitApply(pod("b", "10.0.0.2", "False")));
        pods.on(Event::InitApply(pod("c", "fd00::3", "True")));
        pods.on(Event::InitDone);
        assert_eq!(ready(&pods), Some(vec!["10.0.0.1:80".to_owned(), "[fd00::3]:80".to_owned()]));
        pods.on(Event::Apply(pod("b", "10.0.0.2", "True")));
        pods.on(Event::Delete(pod("c", "fd00::3", "True")));
        let mut ends = pod("a", "10.0.0.1", "True");
        ends.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
        pods.on(Event::Apply(ends));
        assert_eq!(ready(&pods), Some(vec!["10.0.0.2:80".to_owned()]));
        // A watch that begins anew takes nothing away before it has told all.
        pods.on(Event::Init);
        assert_eq!(ready(&pods), Some(vec!["10.0.0.2:80".to_owned()]));
        pods.on(Event::InitDone);
        assert_eq!(ready(&pods), Some(Vec::new()));
        // Without a status or an address there is nothing to ask.
        pods.on(Event::Apply(Pod::default()));
        pods.on(Event::Apply(pod("d", "", "True")));
        assert_eq!(ready(&pods), Some(Vec::new()));
    }
}
