//! Texts of others, cut to a length that can be kept and told.

/// Stands where a text was cut.
const MARK: &str = " …";

/// The beginning of a text of more than `most` bytes, which ends in a mark then; any other text as it is.
#[must_use]
pub fn shortened(mut text: String, most: usize) -> String {
    if text.len() > most {
        let room = most.saturating_sub(MARK.len());
        let end = (0..=room).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push_str(MARK);
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_between_characters() {
        for (text, most, short) in [
            ("", 8, ""),
            ("12345678", 8, "12345678"),
            ("123456789", 8, "1234 …"),
            ("éééééé", 9, "éé …"),
            ("long", 2, " …"),
        ] {
            assert_eq!(shortened(text.to_owned(), most), short, "{text} in {most} bytes");
        }
        assert!(shortened("x".repeat(1 << 20), 100).capacity() < 1_000, "the rest takes no memory");
    }
}
