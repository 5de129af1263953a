//! Where requests begin and end on a connection, seen from the bytes alone. A request that tells
//! its length twice, by `Content-Length` and by `Transfer-Encoding`, could mean one thing here and
//! another to a proxy in between; what parses heads drops one of the two without a word, so they
//! are looked for before it.

/// Bytes of a line that are kept; headers that matter are shorter.
const MAX_LINE: usize = 256;

/// What is awaited next.
#[derive(Debug)]
enum Awaits {
    /// More of a head.
    Head,
    /// So many bytes of a body or a chunk.
    Bytes { left: u64, chunked: bool },
    /// The line before a chunk.
    Size,
    /// What follows the last chunk.
    Trailers,
    /// Nothing that can be told apart.
    Anything,
}

/// Follows the requests of one connection.
#[derive(Debug)]
pub(crate) struct Framing {
    awaits: Awaits,
    /// The line as far as it has come.
    line: Vec<u8>,
    /// What the head has said so far.
    length: Option<u64>,
    encoded: bool,
    /// Whether it has begun: line ends before a head mean nothing.
    begun: bool,
}

impl Framing {
    pub(crate) fn new() -> Self {
        Self { awaits: Awaits::Head, line: Vec::new(), length: None, encoded: false, begun: false }
    }

    /// Takes what was read. Where a head ends that tells its length twice, says how many of the
    /// bytes come before the last of its line ends.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            match &mut self.awaits {
                Awaits::Anything => return None,
                Awaits::Bytes { left, chunked } => {
                    let step = (bytes.len() - at).min(usize::try_from(*left).unwrap_or(usize::MAX));
                    at += step;
                    *left -= step as u64;
                    if *left == 0 {
                        self.awaits = if *chunked { Awaits::Size } else { Awaits::Head };
                    }
                    continue;
                }
                _ => {}
            }
            let byte = bytes[at];
            at += 1;
            if byte != b'\n' {
                if self.line.len() < MAX_LINE {
                    self.line.push(byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            if self.end_line(line) {
                return Some(at - 1);
            }
        }
        None
    }

    /// Takes a line; whether it ends a head that tells its length twice.
    fn end_line(&mut self, line: &[u8]) -> bool {
        match self.awaits {
            Awaits::Head if line.is_empty() && self.begun => {
                let (length, encoded) = (self.length.take(), std::mem::take(&mut self.encoded));
                self.begun = false;
                self.awaits = match (length, encoded) {
                    (Some(_), true) => return true,
                    (None, true) => Awaits::Size,
                    (Some(left), false) if left > 0 => Awaits::Bytes { left, chunked: false },
                    _ => Awaits::Head,
                };
            }
            Awaits::Head => {
                self.begun |= !line.is_empty();
                self.read_header(line);
            }
            Awaits::Size => {
                let digits = line.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
                let size =
                    std::str::from_utf8(digits).ok().map(|digits| u64::from_str_radix(digits, 16));
                self.awaits = match size {
                    Some(Ok(0)) => Awaits::Trailers,
                    // A line end comes after the chunk.
                    Some(Ok(left)) => Awaits::Bytes { left: left.saturating_add(2), chunked: true },
                    _ => Awaits::Anything,
                };
            }
            Awaits::Trailers if line.is_empty() => self.awaits = Awaits::Head,
            _ => {}
        }
        false
    }

    fn read_header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|b| *b == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.encoded = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            let value = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
            self.length = value.or(Some(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKED: &str =
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n0\r\n\r\n";
    const TWICE: &str =
        "POST / HTTP/1.1\r\ncontent-length: 4\r\nTRANSFER-ENCODING: chunked\r\n\r\n0\r\n\r\n";
    const OTHER_WAY: &str =
        "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n";

    /// Where the bytes are refused, however they are cut.
    fn refused(text: &str) -> Option<usize> {
        let whole = Framing::new().take(text.as_bytes());
        for size in [1, 2, 7, 30] {
            let mut framing = Framing::new();
            let mut pieces = text.as_bytes().chunks(size).enumerate();
            let cut = pieces.find_map(|(i, piece)| framing.take(piece).map(|at| i * size + at));
            assert_eq!(cut, whole, "{size}: {text}");
        }
        whole
    }

    #[test]
    fn a_length_told_twice_is_found_wherever_it_comes() {
        let sound = format!("{PLAIN}{CHUNKED}\r\n{PLAIN}GET / HTTP/1.1\r\n\r\n{CHUNKED}");
        assert_eq!(refused(&sound), None);
        for twice in [TWICE, OTHER_WAY] {
            for before in ["", PLAIN, CHUNKED, &sound] {
                let head = before.len() + twice.find("\r\n\r\n").unwrap() + 3;
                assert_eq!(refused(&format!("{before}{twice}")), Some(head), "{before}{twice}");
            }
        }
        // In a body it is text.
        let length = TWICE.len();
        assert_eq!(
            refused(&format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n{TWICE}{PLAIN}")),
            None
        );
        assert_eq!(refused("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), None);
    }
}
