//! Reads the fields of a protobuf file one by one, without its large ones in memory.

use std::io::{self, BufRead, BufReader, Error, ErrorKind, Read, Seek};

/// The longest text that is read. Names of tensors are shorter.
const TEXT: u64 = 64 << 10;

/// A field: its number and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) number: u64,
    pub(super) content: Content,
}

/// The content of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// A number, read already.
    Number(u64),
    /// Bytes, text or a message that ends at this position.
    Until(u64),
}

/// A file and the position in it.
pub(super) struct Reader<R> {
    inner: BufReader<R>,
    at: u64,
    length: u64,
}

impl<R: Read + Seek> Reader<R> {
    /// A file of `length` bytes, from its start.
    pub(super) fn new(inner: R, length: u64) -> Self {
        Self { inner: BufReader::new(inner), at: 0, length }
    }

    /// The whole file as one message.
    pub(super) fn whole(&self) -> u64 {
        self.length
    }

    /// The next field of the message that ends at `end`; `None` at its end. One that is not read is to be skipped.
    pub(super) fn field(&mut self, end: u64) -> io::Result<Option<Field>> {
        if self.at >= end {
            return if self.at == end { Ok(None) } else { Err(malformed()) };
        }
        let key = self.number()?;
        let content = match key & 7 {
            0 => Content::Number(self.number()?),
            1 => Content::Until(self.at.saturating_add(8)),
            2 => {
                let length = self.number()?;
                Content::Until(self.at.saturating_add(length))
            }
            5 => Content::Until(self.at.saturating_add(4)),
            _ => return Err(malformed()),
        };
        match content {
            Content::Until(until) if until > end => Err(malformed()),
            content => Ok(Some(Field { number: key >> 3, content })),
        }
    }

    /// Moves to the position `until`, without reading what lies between. Fails if that is behind.
    pub(super) fn skip(&mut self, until: u64) -> io::Result<()> {
        let by = i64::try_from(until.checked_sub(self.at).ok_or_else(malformed)?).map_err(|_| malformed())?;
        self.inner.seek_relative(by)?;
        self.at = until;
        Ok(())
    }

    /// The bytes up to `until` as text.
    pub(super) fn text(&mut self, until: u64) -> io::Result<String> {
        let length = until.checked_sub(self.at).filter(|&length| length <= TEXT).ok_or_else(malformed)?;
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        self.inner.read_exact(&mut bytes)?;
        self.at = until;
        String::from_utf8(bytes).map_err(|_| malformed())
    }

    /// The same where a text that is too long, or none, is as good as nothing.
    pub(super) fn text_or_nothing(&mut self, until: u64) -> io::Result<String> {
        if until.checked_sub(self.at).is_none_or(|length| length > TEXT) {
            self.skip(until)?;
            return Ok(String::new());
        }
        self.text(until)
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.inner.fill_buf()?.first().ok_or_else(malformed)?;
            self.inner.consume(1);
            self.at += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(malformed())
    }
}

fn malformed() -> Error {
    Error::new(ErrorKind::InvalidData, "not a valid protobuf message")
}
