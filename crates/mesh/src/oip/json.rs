//! A scanner over JSON bytes: it walks, it does not build a tree. Its caller says what each key means and what is skipped.
//!
//! RFC 8259, with nesting bounded by [`MAX_DEPTH`]. Strings are checked to be UTF-8; nothing is copied but strings with escapes.

use std::borrow::Cow;

use berth_spec::InferError;
use memchr::memchr2;

/// The depth to which arrays and objects may nest, as in Triton. It bounds the scanner's stack; tensors seldom have
/// more than 8 dimensions.
const MAX_DEPTH: u32 = 100;

/// The place and the reason that bytes are not JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request is not valid JSON: {expected} at byte {at}")]
pub(super) struct Syntax {
    at: usize,
    expected: &'static str,
}

impl From<Syntax> for InferError {
    fn from(error: Syntax) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// A position in JSON bytes. A copy of it can read a value again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Scanner<'a> {
    /// A scanner at the beginning of `text`, which need not be UTF-8.
    pub(super) const fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, depth: 0 }
    }

    /// The error that `expected` should stand at the current position.
    pub(super) const fn error(&self, expected: &'static str) -> Syntax {
        Syntax { at: self.at, expected }
    }

    /// The next byte that is not white space, without taking it.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.text.get(self.at) {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    /// The bytes that are left, from exactly here.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.text[self.at..]
    }

    /// Steps over `bytes` bytes of [`rest`](Self::rest).
    #[inline]
    pub(super) const fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Takes `byte` if it is next.
    #[inline]
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Takes `word` if it is next; what follows is looked at by whoever reads on.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        self.peek();
        let found = self.rest().starts_with(word.as_bytes());
        self.at += if found { word.len() } else { 0 };
        found
    }

    /// Nothing but white space may be left.
    pub(super) fn end(&mut self) -> Result<(), Syntax> {
        self.peek().map_or(Ok(()), |_| Err(self.error("expected nothing after the request")))
    }

    /// Takes the opening byte of an array or object.
    pub(super) fn open(&mut self, byte: u8, expected: &'static str) -> Result<(), Syntax> {
        if !self.take(byte) {
            return Err(self.error(expected));
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("nested deeper than 100 levels"));
        }
        Ok(())
    }

    /// After an element: whether another one follows; takes the comma or the closing byte.
    #[inline]
    pub(super) fn more(&mut self, close: u8) -> Result<bool, Syntax> {
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(byte) if byte == close => {
                self.at += 1;
                self.depth -= 1;
                Ok(false)
            }
            _ => Err(self.error("expected ',' or the end of the array or object")),
        }
    }

    /// True if the array or object that was just opened has no elements; takes the closing byte if so.
    pub(super) fn closes(&mut self, close: u8) -> bool {
        let closes = self.take(close);
        self.depth -= u32::from(closes);
        closes
    }

    /// Reads an object: `field` takes the value of each key.
    pub(super) fn object<E: From<Syntax>>(
        &mut self,
        mut field: impl FnMut(&mut Self, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open(b'{', "expected an object")?;
        if self.closes(b'}') {
            return Ok(());
        }
        loop {
            let key = self.string()?;
            if !self.take(b':') {
                return Err(self.error("expected ':' after a key").into());
            }
            field(self, &key)?;
            if !self.more(b'}')? {
                return Ok(());
            }
        }
    }

    /// Reads an array: `element` takes each value.
    pub(super) fn array<E: From<Syntax>>(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open(b'[', "expected an array")?;
        if self.closes(b']') {
            return Ok(());
        }
        loop {
            element(self)?;
            if !self.more(b']')? {
                return Ok(());
            }
        }
    }

    /// Reads a string. Without escapes it is a slice of the text.
    pub(super) fn string(&mut self) -> Result<Cow<'a, str>, Syntax> {
        if !self.take(b'"') {
            return Err(self.error("expected a string"));
        }
        let piece = self.piece()?;
        if self.rest().first() == Some(&b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(piece));
        }
        let mut text = piece.as_bytes().to_vec();
        self.string_tail(&mut text)?;
        // Escapes are decoded to whole characters, pieces are checked: this cannot fail, and costs little to check.
        String::from_utf8(text).map(Cow::Owned).map_err(|_| self.error("expected UTF-8 in a string"))
    }

    /// Appends a string's UTF-8 to `out`.
    pub(super) fn string_into(&mut self, out: &mut Vec<u8>) -> Result<(), Syntax> {
        if !self.take(b'"') {
            return Err(self.error("expected a string"));
        }
        self.string_tail(out)
    }

    /// Appends what is left of a string, closing quote taken.
    fn string_tail(&mut self, out: &mut Vec<u8>) -> Result<(), Syntax> {
        loop {
            out.extend_from_slice(self.piece()?.as_bytes());
            let escape = self.rest().first() == Some(&b'\\');
            self.at += 1;
            if !escape {
                return Ok(());
            }
            let character = self.escape()?;
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }

    /// The characters up to the next quote or backslash, which is not taken.
    fn piece(&mut self) -> Result<&'a str, Syntax> {
        let rest = self.rest();
        let Some(length) = memchr2(b'"', b'\\', rest) else {
            return Err(self.error("a string without an end"));
        };
        let piece = &rest[..length];
        if piece.iter().any(|&byte| byte < 0x20) {
            return Err(self.error("a control character that is not escaped, in the string"));
        }
        let text = str::from_utf8(piece).map_err(|_| self.error("expected UTF-8 in the string"))?;
        self.at += length;
        Ok(text)
    }

    /// The character of an escape, whose backslash was taken.
    fn escape(&mut self) -> Result<char, Syntax> {
        let byte = self.rest().first().copied();
        self.at += usize::from(byte.is_some());
        Ok(match byte {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return Err(self.error("an escape that JSON does not have, before here")),
        })
    }

    /// The character of `\uXXXX`, or of a surrogate pair of them.
    fn unicode_escape(&mut self) -> Result<char, Syntax> {
        let lone = "half of a surrogate pair before here";
        let first = self.hex4()?;
        if !(0xD800..0xE000).contains(&first) {
            return char::from_u32(first).ok_or(self.error(lone));
        }
        if first >= 0xDC00 || !self.rest().starts_with(b"\\u") {
            return Err(self.error(lone));
        }
        self.at += 2;
        let second = self.hex4()?;
        if !(0xDC00..0xE000).contains(&second) {
            return Err(self.error(lone));
        }
        char::from_u32(0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)).ok_or(self.error(lone))
    }

    fn hex4(&mut self) -> Result<u32, Syntax> {
        let error = self.error("expected four hexadecimal digits");
        let digits = self.rest().first_chunk::<4>().ok_or(error)?;
        self.at += 4;
        digits
            .iter()
            .try_fold(0, |value, &digit| char::from(digit).to_digit(16).map(|digit| value << 4 | digit).ok_or(error))
    }

    /// Reads a value and forgets it. Recursion is bounded by [`MAX_DEPTH`].
    pub(super) fn skip(&mut self) -> Result<(), Syntax> {
        match self.peek() {
            Some(b'{') => self.object(|scanner, _| scanner.skip()),
            Some(b'[') => self.array(Self::skip),
            Some(b'"') => self.string().map(drop),
            // The last three are not JSON, but in `data` that is read again later they are elements.
            _ if ["true", "false", "null", "NaN", "Infinity", "-Infinity"].iter().any(|word| self.take_word(word)) => {
                Ok(())
            }
            Some(b'-' | b'0'..=b'9') => self.number().map(drop),
            _ => Err(self.error("expected a value")),
        }
    }
}

/// Appends `text` as a JSON string, with quotes and escapes.
pub(super) fn write_string(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a Vec takes everything, and a string is always JSON");
}
