//! A text field of a protobuf message, found in the bytes of the message by its path of field numbers, without a
//! description of the message. Bytes behind the field need not be here yet.

/// The result of looking for a field in a protobuf message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FieldLookup<'m> {
    /// Its bytes.
    Value(&'m [u8]),
    /// Nothing says yet whether it is there: more bytes are needed.
    Incomplete,
    /// The message has no such field.
    Absent,
    /// These are no bytes of a message.
    Invalid,
}

/// Looks for the first field at `path` in a message of `length` bytes, of which `here` are here.
pub(crate) fn find<'m>(here: &'m [u8], length: usize, path: &[u32]) -> FieldLookup<'m> {
    let Some((&wanted, inner)) = path.split_first() else { return FieldLookup::Absent };
    let mut at = 0;
    while at < length {
        let (key, value) = match varint(here, at, length) {
            Ok(read) => read,
            Err(found) => return found,
        };
        let Ok(number) = u32::try_from(key >> 3) else { return FieldLookup::Invalid };
        let (begin, end) = match extent(here, value, length, key & 7) {
            Ok(extent) => extent,
            Err(found) => return found,
        };
        if end > length || number == 0 {
            return FieldLookup::Invalid;
        }
        if number == wanted && key & 7 == 2 {
            if !inner.is_empty() {
                match find(here.get(begin..).unwrap_or_default(), end - begin, inner) {
                    FieldLookup::Absent => {}
                    found => return found,
                }
            } else {
                return here.get(begin..end).map_or(FieldLookup::Incomplete, FieldLookup::Value);
            }
        }
        at = end;
    }
    FieldLookup::Absent
}

/// The bytes of a value of this wire type that begins at `at`.
fn extent(here: &[u8], at: usize, length: usize, kind: u64) -> Result<(usize, usize), FieldLookup<'_>> {
    match kind {
        0 => varint(here, at, length).map(|(_, end)| (at, end)),
        1 => Ok((at, at + 8)),
        5 => Ok((at, at + 4)),
        2 => {
            let (size, begin) = varint(here, at, length)?;
            let size = usize::try_from(size).map_err(|_| FieldLookup::Invalid)?;
            begin.checked_add(size).map(|end| (begin, end)).ok_or(FieldLookup::Invalid)
        }
        // Groups, which nobody writes any more.
        _ => Err(FieldLookup::Invalid),
    }
}

/// A number and where it ends.
fn varint(here: &[u8], at: usize, length: usize) -> Result<(u64, usize), FieldLookup<'_>> {
    let mut value = 0_u64;
    for (n, place) in (at..length.min(at + 10)).enumerate() {
        let byte = *here.get(place).ok_or(FieldLookup::Incomplete)?;
        value |= u64::from(byte & 0x7f) << (7 * n);
        if byte & 0x80 == 0 {
            return Ok((value, place + 1));
        }
    }
    Err(FieldLookup::Invalid)
}

#[cfg(test)]
mod tests {
    use berth_wire::mmesh::{LoadModelRequest, RuntimeStatusResponse, runtime_status_response::MethodInfo};
    use proptest::{collection::vec, prelude::*};
    use prost::Message as _;

    use super::*;
    use crate::mutator;

    /// One byte chooses a path, the rest is a message: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).
    /// Of a message that is not whole yet, what is found stays found.
    #[test]
    fn fuzz_wire_field() {
        const PATHS: [&[u32]; 4] = [&[1], &[2], &[8, 1], &[2, 1, 3]];
        mutator::run("wire_field", |data| {
            let Some((&chosen, message)) = data.split_first() else { return };
            let path = PATHS[usize::from(chosen) % PATHS.len()];
            let whole = find(message, message.len(), path);
            assert_ne!(whole, FieldLookup::Incomplete, "nothing more can come");
            // The first and the last bytes tell as much as all prefixes, in less time.
            let far = message.len().saturating_sub(32);
            for here in (0..=message.len()).filter(|&here| here < 32 || here > far) {
                let found = find(&message[..here], message.len(), path);
                assert!(found == FieldLookup::Incomplete || found == whole, "{here}: {found:?}, {whole:?}");
            }
        });
    }

    proptest! {
        #[test]
        fn it_is_found_in_any_prefix_that_holds_it(id in ".{0,40}", before in ".{1,40}", after in ".{0,300}") {
            // Field 2 before field 1: order is free.
            let mut bytes = LoadModelRequest { model_type: before, ..Default::default() }.encode_to_vec();
            LoadModelRequest { model_id: id.clone(), ..Default::default() }.encode(&mut bytes).expect("room");
            let enough = bytes.len();
            LoadModelRequest { model_path: after, ..Default::default() }.encode(&mut bytes).expect("room");
            let all = bytes.len();
            for here in 0..=all {
                let expected = match (here >= enough, id.is_empty()) {
                    (true, false) => FieldLookup::Value(id.as_bytes()),
                    (_, true) if here == all => FieldLookup::Absent,
                    (_, true) => continue,
                    (false, false) => FieldLookup::Incomplete,
                };
                prop_assert_eq!(find(&bytes[..here], all, &[1]), expected);
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in vec(any::<u8>(), 0..200), more in 0_usize..200, path in vec(1_u32..20, 0..4)) {
            let _ = find(&bytes, bytes.len() + more, &path);
        }
    }

    #[test]
    fn paths_lead_into_messages() {
        let info = MethodInfo { id_injection_path: vec![7] };
        let status = RuntimeStatusResponse {
            capacity_in_bytes: 1 << 40,
            runtime_version: "v".to_owned(),
            method_infos: [("method".to_owned(), info)].into(),
            ..Default::default()
        };
        let bytes = status.encode_to_vec();
        assert_eq!(find(&bytes, bytes.len(), &[8, 1]), FieldLookup::Value(b"method"));
        assert_eq!(find(&bytes, bytes.len(), &[8, 3]), FieldLookup::Absent);
        assert_eq!(find(&bytes, bytes.len(), &[6]), FieldLookup::Value(b"v"));
        assert_eq!(find(&bytes, bytes.len(), &[2]), FieldLookup::Absent, "a number is no text");
        assert_eq!(find(&[0x0b], 1, &[1]), FieldLookup::Invalid, "a group");
        assert_eq!(find(&[0x0a, 0x7f], 2, &[1]), FieldLookup::Invalid, "it ends behind the message");
    }
}
