//! Writes messages in the format of Protocol Buffers: only what spans need.

/// Writes the fields of one message.
#[derive(Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            // The mask leaves 7 bits, so the conversion cannot fail.
            self.0
                .push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
            value >>= 7;
        }
        self.0.push(u8::try_from(value).unwrap_or_default());
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    pub(super) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.tag(field, 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    pub(super) fn text(&mut self, field: u32, value: &str) {
        self.bytes(field, value.as_bytes());
    }

    pub(super) fn number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    pub(super) fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn message(&mut self, field: u32, message: &Self) {
        self.bytes(field, &message.0);
    }

    /// Appends fields that are encoded already.
    pub(super) fn append(&mut self, fields: &[u8]) {
        self.0.extend_from_slice(fields);
    }

    /// Writes an attribute: a `KeyValue` with an `AnyValue`.
    pub(super) fn attribute(&mut self, field: u32, key: &str, value: Value<'_>) {
        let mut any = Self::default();
        match value {
            Value::Text(value) => any.text(1, value),
            Value::Bool(value) => any.number(2, u64::from(value)),
            Value::Number(value) => any.number(3, value),
            Value::Float(value) => any.fixed64(4, value.to_bits()),
        }
        let mut pair = Self::default();
        pair.text(1, key);
        pair.message(2, &any);
        self.message(field, &pair);
    }
}

/// Value of an attribute.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Text(&'a str),
    Bool(bool),
    Number(u64),
    Float(f64),
}
