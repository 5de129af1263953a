//! Protobuf messages, as far as traces need them: a field is its number and what follows, and
//! nothing is read.

/// A message that is being written.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

/// How the value of a field is laid out.
const VARINT: u64 = 0;
const FIXED: u64 = 1;
const LENGTH: u64 = 2;

impl Message {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn number(&mut self, field: u64, number: u64) {
        self.varint(field << 3 | VARINT);
        self.varint(number);
    }

    /// Eight bytes: a time, or the bits of a double.
    pub(crate) fn fixed(&mut self, field: u64, bits: u64) {
        self.varint(field << 3 | FIXED);
        self.0.extend(bits.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.varint(field << 3 | LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }

    pub(crate) fn text(&mut self, field: u64, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    pub(crate) fn message(&mut self, field: u64, message: &Self) {
        self.bytes(field, &message.0);
    }

    /// Seven bits a byte, the lowest first; the eighth says that more follow.
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_laid_out() {
        let mut inner = Message::default();
        inner.number(1, 150);
        let mut message = Message::default();
        message.message(3, &inner);
        message.text(2, "testing");
        message.fixed(4, 1);
        message.number(16, 0);
        let bytes = [
            [0x1a, 3, 0x08, 0x96, 0x01].as_slice(),
            &[0x12, 7],
            b"testing",
            &[0x21, 1, 0, 0, 0, 0, 0, 0, 0],
            &[0x80, 0x01, 0],
        ];
        assert_eq!(message.into_bytes(), bytes.concat());
    }
}
