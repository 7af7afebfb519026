//! Results of requests by revision, from gateways to the controller.

use berth_spec::traffic::{LATENCY_BUCKETS, RevisionOutcomes};

use super::{
    name::{name_of, name_to},
    v1,
};

/// Revisions in one message. Each takes less than 500 bytes, and a message half a megabyte.
pub const MOST_OUTCOMES: usize = 1_024;

/// Outcomes for the wire, in messages of at most [`MOST_OUTCOMES`].
pub fn outcomes_to(outcomes: &[RevisionOutcomes]) -> impl Iterator<Item = v1::Outcomes> {
    let message = |one: &RevisionOutcomes| {
        let filled = one.latency.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        v1::RevisionOutcomes {
            revision: Some(name_to(&one.revision)),
            ok: one.ok,
            client_errors: one.client_errors,
            server_errors: one.server_errors,
            latency: one.latency[..filled].to_vec(),
        }
    };
    outcomes.chunks(MOST_OUTCOMES).map(move |some| v1::Outcomes { outcomes: some.iter().map(message).collect() })
}

/// Outcomes from the wire. Those whose revision cannot be understood are left out; buckets that are not known here count as
/// the last one.
#[must_use]
pub fn outcomes_of(outcomes: v1::Outcomes) -> Vec<RevisionOutcomes> {
    let one = |one: v1::RevisionOutcomes| {
        let mut latency = [0_u64; LATENCY_BUCKETS];
        for (at, count) in one.latency.iter().enumerate() {
            let bucket = &mut latency[at.min(LATENCY_BUCKETS - 1)];
            *bucket = bucket.saturating_add(*count);
        }
        Some(RevisionOutcomes {
            revision: name_of(one.revision?)?,
            ok: one.ok,
            client_errors: one.client_errors,
            server_errors: one.server_errors,
            latency,
        })
    };
    outcomes.outcomes.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use berth_spec::{DeploymentName, RevisionId};

    use super::*;

    #[test]
    fn outcomes_come_out_as_they_went_in_and_strange_ones_do_no_harm() {
        let revision = RevisionId::of(DeploymentName::new("iris").expect("a name"), b"1");
        let mut latency = [0; LATENCY_BUCKETS];
        latency[3] = 7;
        let one = RevisionOutcomes { revision, ok: 5, client_errors: 1, server_errors: 1, latency };
        let sent = vec![one.clone(); MOST_OUTCOMES + 1];
        let messages: Vec<_> = outcomes_to(&sent).collect();
        assert_eq!((messages.len(), messages[0].outcomes[0].latency.len()), (2, 4));
        assert_eq!(messages.into_iter().flat_map(outcomes_of).collect::<Vec<_>>(), sent);
        let strange = v1::RevisionOutcomes { latency: vec![u64::MAX; 40], ..v1::RevisionOutcomes::default() };
        let longer =
            v1::RevisionOutcomes { revision: Some(name_to(&one.revision)), latency: vec![1; 15], ..strange.clone() };
        let read = outcomes_of(v1::Outcomes { outcomes: vec![strange, longer] });
        assert_eq!((read.len(), read[0].latency[LATENCY_BUCKETS - 1]), (1, 3));
    }
}
