//! Did you mean …?

/// The candidate that `word` was most likely meant to be; `None` if none is near.
///
/// Near is: equal but for case, `-` and `_`; or at most a third of the word's letters (at least one, at most four)
/// inserted, removed, replaced or swapped; or one begins with the other and both have three letters.
pub fn closest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.replace(['-', '_'], "").to_lowercase();
    let wanted = plain(word);
    let allowed = (wanted.chars().count() / 3).clamp(1, 4);
    candidates
        .into_iter()
        .filter_map(|candidate| {
            let candidate_plain = plain(candidate);
            let distance = strsim::osa_distance(&wanted, &candidate_plain);
            let prefix = wanted.len().min(candidate_plain.len()) >= 3
                && (candidate_plain.starts_with(&wanted) || wanted.starts_with(&candidate_plain));
            (distance <= allowed || prefix).then_some((distance, candidate))
        })
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::closest;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        let fields = ["model", "replicas", "idleAfter", "priority", "resources"];
        for (word, found) in [
            ("replica", Some("replicas")),
            ("Replicas", Some("replicas")),
            ("idle_after", Some("idleAfter")),
            ("modle", Some("model")),
            ("prio", Some("priority")),
            ("volume", None),
            ("", None),
        ] {
            assert_eq!(closest(word, fields), found, "{word}");
        }
    }
}
