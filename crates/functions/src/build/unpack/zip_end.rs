//! The end record of a ZIP file, read before a reader allocates what it claims.

use std::io::{self, Read as _, Seek as _, SeekFrom};

use fs_err::File;

use super::read_some;

/// The number of files that a ZIP file claims in its end record. `None`: there is none with which the file ends, and its reader
/// would look for another, which nobody has counted.
///
/// Source: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.14 to 4.3.16.
pub(super) fn counted(file: &mut File, size: u64) -> io::Result<Option<u64>> {
    /// Bytes of an end record without its comment.
    const END: usize = 22;
    /// Bytes of the locator before it, where there is a record with larger numbers.
    const LOCATOR: usize = 20;
    let number = |bytes: &[u8], at: usize, length: usize| {
        bytes.get(at..at + length).unwrap_or_default().iter().rev().fold(0, |sum, &byte| (sum << 8) | u64::from(byte))
    };
    let tail = size.min((LOCATOR + END + usize::from(u16::MAX)) as u64);
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(size - tail))?;
    file.by_ref().take(tail).read_to_end(&mut bytes)?;
    let begins = bytes.windows(END).rposition(|record| record.starts_with(b"PK\x05\x06"));
    let Some(begins) = begins else { return Ok(None) };
    let comment = number(&bytes, begins + END - 2, 2);
    if (begins + END) as u64 + comment != tail {
        return Ok(None);
    }
    let mut count = number(&bytes, begins + 8, 2).max(number(&bytes, begins + 10, 2));
    let locator = begins.checked_sub(LOCATOR).and_then(|at| bytes.get(at..begins));
    if let Some(locator) = locator.filter(|locator| locator.starts_with(b"PK\x06\x07")) {
        let mut record = [0; 56];
        let place = number(locator, 8, 8);
        file.seek(SeekFrom::Start(place.min(size)))?;
        if read_some(file, &mut record)? != record.len() || !record.starts_with(b"PK\x06\x06") {
            return Ok(None);
        }
        // The largest number of the end record says that this one has it.
        count = if count == u64::from(u16::MAX) { 0 } else { count };
        count = count.max(number(&record, 24, 8)).max(number(&record, 32, 8));
    }
    file.rewind()?;
    Ok(Some(count))
}
