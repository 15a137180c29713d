//! Where one RESP value ends and the next begins: RESP2 and RESP3, requests and replies.
//!
//! The proxy forwards bytes as they are; it needs no values, only their borders and the words of a request.

use std::io;

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Finds the end of the value at the start of a buffer that grows.
///
/// It remembers how far it came: a reply of many MiB arrives in hundreds of reads and is looked at once.
#[derive(Debug)]
struct Scanner {
    position: usize,
    values_left: usize,
}

impl Scanner {
    const fn new() -> Self {
        Self { position: 0, values_left: 1 }
    }

    /// The length of the whole value, once all of it is there.
    fn end(&mut self, buffer: &[u8]) -> io::Result<Option<usize>> {
        while self.values_left > 0 {
            let Some(line) = line_at(buffer, self.position) else { return Ok(None) };
            let after_line = self.position + line.len() + 2;
            let kind = line.first().copied().unwrap_or_default();
            let size = || signed(line.get(1..).unwrap_or_default());
            let (end, members) = match kind {
                // Bulk string, verbatim string, bulk error; -1 is RESP2's null.
                b'$' | b'=' | b'!' => match size()? {
                    0.. => (after_line + size()?.unsigned_abs() + 2, 0),
                    _ => (after_line, 0),
                },
                b'*' | b'~' | b'>' => (after_line, size()?.max(0).unsigned_abs()),
                b'%' => (after_line, size()?.max(0).unsigned_abs() * 2),
                // An attribute stands before the value it belongs to, which is still to come.
                b'|' => (after_line, size()?.max(0).unsigned_abs() * 2 + 1),
                // Simple types, and a request typed by hand ("inline command").
                _ => (after_line, 0),
            };
            if end > buffer.len() {
                return Ok(None);
            }
            self.position = end;
            self.values_left = self.values_left - 1 + members;
        }
        let end = self.position;
        *self = Self::new();
        Ok(Some(end))
    }
}

fn line_at(buffer: &[u8], start: usize) -> Option<&[u8]> {
    let rest = buffer.get(start..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    Some(&rest[..end])
}

fn signed(digits: &[u8]) -> io::Result<isize> {
    let text = String::from_utf8_lossy(digits);
    text.parse()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP length: {text:?}")))
}

/// Cuts a byte stream into RESP values. Reading is cancel safe: what has arrived stays in the buffer.
#[derive(Debug)]
pub struct FrameReader<R> {
    stream: R,
    buffer: BytesMut,
    scanner: Scanner,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads from `stream`.
    pub fn new(stream: R) -> Self {
        Self { stream, buffer: BytesMut::with_capacity(64 << 10), scanner: Scanner::new() }
    }

    /// The next whole value, or `None` at the end of the stream.
    pub async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(frame));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    /// The next whole value if it has arrived already: the rest of a pipeline.
    pub fn buffered(&mut self) -> io::Result<Option<Bytes>> {
        Ok(self.scanner.end(&self.buffer)?.map(|end| self.buffer.split_to(end).freeze()))
    }

    /// Whatever bytes come next, whole values or not; empty at the end of the stream.
    pub async fn raw(&mut self) -> io::Result<Bytes> {
        if self.buffer.is_empty() && self.stream.read_buf(&mut self.buffer).await? == 0 {
            return Ok(Bytes::new());
        }
        self.scanner = Scanner::new();
        Ok(self.buffer.split().freeze())
    }
}

/// The words of a request: an array of bulk strings, or a line typed by hand.
pub fn words(mut frame: Bytes) -> Vec<Bytes> {
    if frame.first() != Some(&b'*') {
        let line = frame.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return line.map(Bytes::copy_from_slice).collect();
    }
    let mut words = Vec::new();
    skip_line(&mut frame);
    while let Some(line) = line_at(&frame, 0) {
        let size = signed(line.get(1..).unwrap_or_default()).unwrap_or(0).max(0).unsigned_abs();
        skip_line(&mut frame);
        if frame.len() < size + 2 {
            break;
        }
        words.push(frame.split_to(size));
        frame.advance(2);
    }
    words
}

fn skip_line(frame: &mut Bytes) {
    let length = line_at(frame, 0).map_or(frame.len(), |line| line.len() + 2);
    frame.advance(length);
}

/// Whether a reply answers no request: RESP3's out-of-band data.
pub fn is_push(frame: &[u8]) -> bool {
    frame.first() == Some(&b'>')
}

#[cfg(test)]
mod tests {
    use super::{FrameReader, words};
    use bytes::Bytes;

    /// One value of every kind of RESP2 and RESP3.
    const VALUES: &[&[u8]] = &[
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":-12\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$7\r\n$5\r\n*3\r\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*2\r\n*1\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b"(123456789012345678901234567890\r\n",
        b"=5\r\ntxt:a\r\n",
        b"!5\r\nERR a\r\n",
        b"%1\r\n+a\r\n~2\r\n:1\r\n:2\r\n",
        b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
        b"|1\r\n+ttl\r\n:3\r\n*1\r\n:1\r\n",
    ];

    #[tokio::test]
    async fn a_stream_is_cut_at_the_borders_of_its_values() {
        let stream = VALUES.concat();
        // Byte by byte is the worst case of a slow network.
        for chunk in [1, 3, stream.len()] {
            let (mut writer, reader) = tokio::io::duplex(chunk);
            let bytes = stream.clone();
            let sender = tokio::spawn(async move {
                tokio::io::AsyncWriteExt::write_all(&mut writer, &bytes).await.unwrap();
            });
            let mut reader = FrameReader::new(reader);
            for value in VALUES {
                assert_eq!(reader.next().await.unwrap().unwrap(), *value);
            }
            sender.await.unwrap();
            assert_eq!(reader.next().await.unwrap(), None);
        }
    }

    #[tokio::test]
    async fn a_length_that_is_no_number_is_an_error() {
        let mut reader = FrameReader::new(&b"*x\r\n"[..]);
        assert!(reader.next().await.is_err());
    }

    #[test]
    fn a_request_is_an_array_or_a_line() {
        let array = words(Bytes::from_static(b"*2\r\n$3\r\nGET\r\n$4\r\n\r\nab\r\n"));
        assert_eq!(array, ["GET", "\r\nab"]);
        assert_eq!(words(Bytes::from_static(b"SET a  1\r\n")), ["SET", "a", "1"]);
    }
}
