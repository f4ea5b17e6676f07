//! A document as a tree that keeps what kube-apiserver's verdict depends on and serde's own types lose: every duplicate
//! key, merge keys, YAML 1.1's view of plain scalars, and where each key stands.
//!
//! Neither YAML reader nor JSON reader tells places of values. But both lend a string out of the input where it stands
//! there as it is, so its address is its place. What has escapes or spans lines has none, and its parent's is taken.

use std::cell::Cell;
use std::fmt;

use serde::Deserializer;
use serde::de::{
    self, DeserializeSeed, EnumAccess, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use crate::scalar::{self, Plain};

/// Most nodes of a tree, aliases written out. A usual file has 20; one of the largest size, without aliases, half of it.
const MAX_NODES: usize = 60_000;

/// A value and where it stands.
#[derive(Debug)]
pub(crate) struct Node {
    /// Byte offset in the input.
    pub(crate) at: Option<usize>,
    pub(crate) value: Value,
}

#[derive(Debug)]
pub(crate) enum Value {
    Null,
    /// As written.
    Bool(String),
    /// As written, or in the reader's words.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key with its value.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) at: Option<usize>,
    /// The unquoted `<<` of YAML.
    pub(crate) is_merge: bool,
    pub(crate) value: Node,
}

/// Reads a tree out of any deserializer that is given all of `input`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    input: &'a [u8],
    is_yaml: bool,
    /// An application's own tag makes a scalar text, whatever it looks like.
    is_tagged: bool,
    nodes_left: &'a Cell<usize>,
}

/// How many nodes may still come.
pub(crate) fn budget() -> Cell<usize> {
    Cell::new(MAX_NODES)
}

impl<'a> Reader<'a> {
    pub(crate) fn yaml(input: &'a [u8], nodes_left: &'a Cell<usize>) -> Self {
        Self {
            input,
            is_yaml: true,
            is_tagged: false,
            nodes_left,
        }
    }

    pub(crate) fn json(input: &'a [u8], nodes_left: &'a Cell<usize>) -> Self {
        Self {
            is_yaml: false,
            ..Self::yaml(input, nodes_left)
        }
    }

    fn offset(self, text: &str) -> Option<usize> {
        let offset = text
            .as_ptr()
            .addr()
            .checked_sub(self.input.as_ptr().addr())?;
        (self.input.get(offset..offset + text.len())? == text.as_bytes()).then_some(offset)
    }

    /// Whether the scalar at `offset` has neither quotes nor a tag in front of it.
    fn is_plain(self, offset: usize) -> bool {
        let before = self.input.get(..offset).unwrap_or_default();
        let is_quoted = before.ends_with(b"\"") || before.ends_with(b"'");
        !is_quoted && self.tag(offset).is_none()
    }

    /// The tag in front of the scalar at `offset`, on its line.
    fn tag(self, offset: usize) -> Option<&'a [u8]> {
        let before = self.input.get(..offset)?;
        let line = before.rsplit(|byte| matches!(byte, b'\n' | b'\r')).next()?;
        let words = line.rsplit(u8::is_ascii_whitespace);
        let mut words = words.filter(|word| !word.is_empty() && !word.starts_with(b"&"));
        words.next().filter(|word| word.starts_with(b"!"))
    }

    fn text(self, text: &str, offset: Option<usize>) -> Node {
        let plain = match offset {
            Some(offset) if self.is_yaml && !self.is_tagged && self.is_plain(offset) => {
                scalar::resolve(text)
            }
            _ => Plain::Text,
        };
        let value = match plain {
            Plain::Null => Value::Null,
            Plain::Bool => Value::Bool(text.to_owned()),
            Plain::Number => Value::Number(text.to_owned()),
            Plain::Text => Value::Text(text.to_owned()),
        };
        Node { at: offset, value }
    }

    fn placeless(value: Value) -> Node {
        Node { at: None, value }
    }

    fn number(number: impl ToString) -> Node {
        Self::placeless(Value::Number(number.to_string()))
    }

    fn entry<E: de::Error>(self, key: Node, value: Node) -> Result<Entry, E> {
        let at = key.at;
        let is_merge = self.is_yaml
            && matches!(&key.value, Value::Text(text) if text == "<<")
            && at.is_some_and(|at| self.is_plain(at));
        let key = match key.value {
            Value::Text(text) | Value::Number(text) => text,
            Value::Bool(text) => {
                let is_true =
                    text.starts_with(['t', 'T', 'y', 'Y']) || text.eq_ignore_ascii_case("on");
                is_true.to_string()
            }
            Value::Null => return Err(E::custom("a key is empty or null")),
            Value::List(_) | Value::Map(_) => {
                return Err(E::custom("a key is a list or a mapping, not a word"));
            }
        };
        Ok(Entry {
            key,
            at,
            is_merge,
            value,
        })
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        let left = self.nodes_left.get().checked_sub(1).ok_or_else(|| {
            de::Error::custom(
                "there are too many values, aliases written out; no such configuration needs them",
            )
        })?;
        self.nodes_left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Ok(Self::placeless(Value::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Node, E> {
        Ok(Self::placeless(Value::Null))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        Ok(Self::placeless(Value::Bool(value.to_string())))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Node, E> {
        Ok(Self::number(number))
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Node, E> {
        Ok(Self::number(number))
    }

    fn visit_i128<E: de::Error>(self, number: i128) -> Result<Node, E> {
        Ok(Self::number(number))
    }

    fn visit_u128<E: de::Error>(self, number: u128) -> Result<Node, E> {
        Ok(Self::number(number))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Node, E> {
        Ok(if number.is_nan() {
            Self::number(".nan")
        } else if number.is_infinite() {
            Self::number(if number > 0.0 { ".inf" } else { "-.inf" })
        } else {
            Self::number(number)
        })
    }

    fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Node, E> {
        let offset = self.offset(text);
        // Base64, which Go decodes. Nobody means that here.
        if self.is_yaml && offset.and_then(|offset| self.tag(offset)) == Some(b"!!binary") {
            return Err(E::custom(
                "the tag !!binary has no use here; write the text itself",
            ));
        }
        Ok(self.text(text, offset))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Node, E> {
        Ok(self.text(text, None))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let reader = Self {
            is_tagged: false,
            ..self
        };
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(reader)? {
            list.push(item);
        }
        Ok(Node {
            at: list.first().and_then(|item: &Node| item.at),
            value: Value::List(list),
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let reader = Self {
            is_tagged: false,
            ..self
        };
        let mut map = Vec::new();
        while let Some(key) = entries.next_key_seed(reader)? {
            let value = entries.next_value_seed(reader)?;
            map.push(reader.entry(key, value)?);
        }
        Ok(Node {
            at: map.first().and_then(|entry: &Entry| entry.at),
            value: Value::Map(map),
        })
    }

    /// A value with an application's own tag, such as `!secret x`. Go ignores the tag, but takes every scalar for text.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Node, A::Error> {
        let (IgnoredAny, value) = tagged.variant()?;
        let node = value.newtype_variant_seed(Self {
            is_tagged: true,
            ..self
        })?;
        let value = match node.value {
            Value::Null => Value::Text(String::new()),
            Value::Bool(text) | Value::Number(text) => Value::Text(text),
            other => other,
        };
        Ok(Node { value, ..node })
    }
}
