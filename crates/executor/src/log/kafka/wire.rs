//! The binary forms of Kafka (kafka.apache.org/protocol), as far as a producer needs them.

use std::collections::HashMap;

/// Writes numbers in the order of the network, and what has a length.
#[derive(Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn i16(&mut self, value: i16) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    pub(super) fn i32(&mut self, value: i32) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    fn i64(&mut self, value: i64) -> &mut Self {
        self.raw(&value.to_be_bytes())
    }

    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        self.i16(i16::try_from(text.len()).unwrap_or(i16::MAX)).raw(text.as_bytes())
    }

    /// A text that is not there.
    pub(super) fn absent(&mut self) -> &mut Self {
        self.i16(-1)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.i32(length(bytes)).raw(bytes)
    }

    /// A number of few bytes: zigzag, seven bits in each.
    fn varint(&mut self, value: i64) -> &mut Self {
        let mut rest = ((value << 1) ^ (value >> 63)).cast_unsigned();
        while rest >= 0x80 {
            self.0.push((rest & 0x7F) as u8 | 0x80);
            rest >>= 7;
        }
        self.0.push((rest & 0x7F) as u8);
        self
    }
}

fn length(bytes: &[u8]) -> i32 {
    i32::try_from(bytes.len()).unwrap_or(i32::MAX)
}

/// Reads what a broker has written. `None`: it is cut off.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    pub(super) fn i16(&mut self) -> Option<i16> {
        self.take(2).and_then(|bytes| bytes.try_into().ok()).map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.take(4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes)
    }

    /// A text, or its absence.
    pub(super) fn text(&mut self) -> Option<Option<&'a str>> {
        match usize::try_from(self.i16()?) {
            Err(_) => Some(None),
            Ok(length) => std::str::from_utf8(self.take(length)?).ok().map(Some),
        }
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        match usize::try_from(self.i32()?) {
            Err(_) => Some(&[]),
            Ok(length) => self.take(length),
        }
    }

    /// Reads the items of a list. Each takes a byte at least, so a length that is made up ends soon.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut items = Vec::new();
        for _ in 0..self.i32()? {
            items.push(item(self)?);
        }
        Some(items)
    }
}

/// A partition and who leads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) number: i32,
    pub(super) leader: i32,
}

/// Answer to a question for one topic.
pub(super) struct Metadata {
    pub(super) error: i16,
    /// Addresses by number.
    pub(super) brokers: HashMap<i32, String>,
    /// Partitions that have a leader.
    pub(super) partitions: Vec<Partition>,
}

pub(super) fn metadata(reader: &mut Reader<'_>) -> Option<Metadata> {
    let brokers = reader.list(|reader| {
        let (number, host, port) = (reader.i32()?, reader.text()??, reader.i32()?);
        reader.text()?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        Some((number, format!("{host}:{port}")))
    })?;
    reader.i32()?;
    let mut topics = reader.list(|reader| {
        let error = reader.i16()?;
        reader.text()?;
        reader.take(1)?;
        let partitions = reader.list(|reader| {
            let (_, number, leader) = (reader.i16()?, reader.i32()?, reader.i32()?);
            reader.list(Reader::i32)?;
            reader.list(Reader::i32)?;
            Some(Partition { number, leader })
        })?;
        Some((error, partitions))
    })?;
    let (error, mut partitions) = topics.pop()?;
    partitions.retain(|partition| partition.leader >= 0);
    Some(Metadata { error, brokers: brokers.into_iter().collect(), partitions })
}

/// The error of the one partition that was written to.
pub(super) fn produced(reader: &mut Reader<'_>) -> Option<i16> {
    let mut errors = reader.list(|reader| {
        reader.text()?;
        reader.list(|reader| {
            reader.i32()?;
            let error = reader.i16()?;
            reader.take(16)?;
            Some(error)
        })
    })?;
    errors.pop()?.pop()
}

/// Lines as one batch of records (format 2).
pub(super) fn batch(lines: &[String], now: i64) -> Vec<u8> {
    let mut records = Writer::default();
    for (at, line) in lines.iter().enumerate() {
        let mut record = Writer::default();
        // Attributes, the time since the first one, the place, no key.
        record.raw(&[0]).varint(0).varint(i64::try_from(at).unwrap_or(0)).varint(-1);
        record.varint(length(line.as_bytes()).into()).raw(line.as_bytes()).varint(0);
        records.varint(length(&record.0).into()).raw(&record.0);
    }
    let count = i32::try_from(lines.len()).unwrap_or(i32::MAX);
    let mut checked = Writer::default();
    checked.i16(0).i32(count - 1).i64(now).i64(now);
    // No producer that counts.
    checked.i64(-1).i16(-1).i32(-1).i32(count).raw(&records.0);
    let mut batch = Writer::default();
    // The length counts from the epoch of the leader on: that, the format and the checksum.
    batch.i64(0).i32(length(&checked.0) + 9).i32(-1).raw(&[2]);
    batch.raw(&crc32c::crc32c(&checked.0).to_be_bytes()).raw(&checked.0);
    batch.0
}

/// An error in words, as far as somebody can do something about it.
pub(super) fn error(code: i16) -> String {
    let words = match code {
        3 => "there is no such topic, and the broker makes none",
        10 | 18 => "a line is larger than the broker takes (message.max.bytes)",
        17 => "the name of the topic is not valid",
        29 => "the user may not write to the topic",
        33 => "the mechanism is not enabled",
        58 => "user and password are wrong",
        _ => return format!("error {code}"),
    };
    format!("{words} (error {code})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_take_few_bytes() {
        for (value, bytes) in
            [(0, &[0][..]), (-1, &[1]), (1, &[2]), (64, &[0x80, 1]), (-65, &[0x81, 1]), (300, &[0xD8, 4])]
        {
            let mut writer = Writer::default();
            writer.varint(value);
            assert_eq!(writer.0, bytes, "{value}");
        }
    }

    #[test]
    fn what_is_cut_off_or_made_up_is_no_answer() {
        let mut whole = Writer::default();
        whole.i32(1).i32(7).text("host").i32(9092).absent().i32(7).i32(1);
        whole.i16(0).text("t").raw(&[0]).i32(2);
        whole.i16(0).i32(0).i32(7).i32(0).i32(0).i16(5).i32(1).i32(-1).i32(0).i32(0);
        let read = metadata(&mut Reader(&whole.0)).expect("it is whole");
        assert_eq!(read.partitions, [Partition { number: 0, leader: 7 }]);
        assert_eq!(read.brokers[&7], "host:9092");
        for end in 0..whole.0.len() {
            assert!(metadata(&mut Reader(&whole.0[..end])).is_none(), "{end}");
        }
        assert!(metadata(&mut Reader(&[0x7F; 64])).is_none());
        assert!(produced(&mut Reader(&[0xFF; 64])).is_none());
    }
}
