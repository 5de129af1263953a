//! Metadata values as views on the header.

use std::fmt;

/// One metadata value. Strings and arrays borrow the file.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(&'a str),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// A metadata array: elements of one scalar or string type, checked when the file was opened.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    pub(super) kind: u32,
    pub(super) len: usize,
    pub(super) bytes: &'a [u8],
}

pub(super) const KIND_BOOL: u32 = 7;
pub(super) const KIND_STRING: u32 = 8;
pub(super) const KIND_ARRAY: u32 = 9;

/// Bytes of a scalar of this kind; none for strings, arrays and unknown kinds.
pub(super) const fn scalar_size(kind: u32) -> Option<usize> {
    match kind {
        0 | 1 | KIND_BOOL => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

const fn kind_name(kind: u32) -> &'static str {
    const NAMES: [&str; 13] = [
        "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64",
        "f64",
    ];
    NAMES[kind as usize]
}

/// Takes one checked value of `kind` off the front of `bytes`.
pub(super) fn take<'a>(kind: u32, bytes: &mut &'a [u8]) -> Value<'a> {
    fn front<const N: usize>(bytes: &mut &[u8]) -> [u8; N] {
        let (head, rest) =
            bytes.split_first_chunk().expect("value was checked when the file was opened");
        *bytes = rest;
        *head
    }
    match kind {
        0 => Value::U8(front::<1>(bytes)[0]),
        1 => Value::I8(i8::from_le_bytes(front(bytes))),
        2 => Value::U16(u16::from_le_bytes(front(bytes))),
        3 => Value::I16(i16::from_le_bytes(front(bytes))),
        4 => Value::U32(u32::from_le_bytes(front(bytes))),
        5 => Value::I32(i32::from_le_bytes(front(bytes))),
        6 => Value::F32(f32::from_le_bytes(front(bytes))),
        KIND_BOOL => Value::Bool(front::<1>(bytes)[0] != 0),
        KIND_STRING => {
            let len = u64::from_le_bytes(front(bytes)) as usize;
            let (text, rest) = bytes.split_at(len);
            *bytes = rest;
            Value::String(
                std::str::from_utf8(text).expect("string was checked when the file was opened"),
            )
        }
        KIND_ARRAY => {
            let kind = u32::from_le_bytes(front(bytes));
            let len = u64::from_le_bytes(front(bytes)) as usize;
            Value::Array(Array { kind, len, bytes: std::mem::take(bytes) })
        }
        10 => Value::U64(u64::from_le_bytes(front(bytes))),
        11 => Value::I64(i64::from_le_bytes(front(bytes))),
        12 => Value::F64(f64::from_le_bytes(front(bytes))),
        _ => unreachable!("value kind {kind} was refused when the file was opened"),
    }
}

impl<'a> Value<'a> {
    /// Any integer that is not negative.
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// Any integer that fits.
    pub fn as_i64(self) -> Option<i64> {
        match self {
            Self::I8(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::I64(v) => Some(v),
            other => other.as_u64()?.try_into().ok(),
        }
    }

    /// A float of either width, as `f32`.
    pub fn as_f32(self) -> Option<f32> {
        match self {
            Self::F32(v) => Some(v),
            Self::F64(v) => Some(v as f32),
            _ => None,
        }
    }

    /// A bool.
    pub fn as_bool(self) -> Option<bool> {
        match self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// A string.
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// An array.
    pub fn as_array(self) -> Option<Array<'a>> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }

    pub(super) fn kind(self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => KIND_BOOL,
            Self::String(_) => KIND_STRING,
            Self::Array(_) => KIND_ARRAY,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }

    /// Its type and, where short, its value, for messages: `u32 7`, `array of 4 bool`.
    pub fn describe(self) -> String {
        match self {
            Self::String(s) if s.chars().count() > 40 => format!("a string of {} bytes", s.len()),
            Self::Array(a) => format!("array of {} {}", a.len, kind_name(a.kind)),
            other => format!("{} {other}", kind_name(other.kind())),
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => v.fmt(f),
            Self::I8(v) => v.fmt(f),
            Self::U16(v) => v.fmt(f),
            Self::I16(v) => v.fmt(f),
            Self::U32(v) => v.fmt(f),
            Self::I32(v) => v.fmt(f),
            Self::F32(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::String(v) => write!(f, "`{v}`"),
            Self::Array(v) => fmt::Debug::fmt(v, f),
            Self::U64(v) => v.fmt(f),
            Self::I64(v) => v.fmt(f),
            Self::F64(v) => v.fmt(f),
        }
    }
}

impl<'a> Array<'a> {
    /// Elements in the array.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (kind, mut rest) = (self.kind, self.bytes);
        (0..self.len).map(move |_| take(kind, &mut rest))
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.iter().take(8).map(|v| v.to_string()).collect::<Vec<_>>().join(", ");
        write!(f, "[{shown}{}]", if self.len > 8 { ", ..." } else { "" })
    }
}
