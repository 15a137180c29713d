//! A job's JSON with its fields in their order and every value in its own bytes: bignums, floats, escapes and
//! whatever else a client or a middleware wrote come out of an edit as they went in.
use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The fields of one job.
#[derive(Debug, Clone)]
pub struct Record<'a>(Vec<(Cow<'a, str>, Text<'a>)>);

/// JSON text: as it was, or new.
#[derive(Debug, Clone)]
enum Text<'a> {
    Kept(&'a RawValue),
    New(String),
}

impl Text<'_> {
    fn get(&self) -> &str {
        match self {
            Self::Kept(raw) => raw.get(),
            Self::New(text) => text,
        }
    }
}

impl<'a> Record<'a> {
    /// Reads an object; `None` when it is none.
    pub fn read(raw: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(raw).ok()
    }

    /// Whether a field is there, whatever it holds.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(field, _)| field == name)
    }

    /// A field, if it is there; of two with one name the last counts, as in Ruby.
    pub fn get(&self, name: &str) -> Option<Value> {
        let (_, text) = self.0.iter().rev().find(|(field, _)| field == name)?;
        serde_json::from_str(text.get()).ok()
    }

    /// The JSON text of a field, if it is there.
    pub fn json(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(field, _)| field == name).map(|(_, text)| text.get())
    }

    /// A field that is text.
    pub fn text(&self, name: &str) -> Option<String> {
        match self.get(name)? {
            Value::String(text) => Some(text),
            _ => None,
        }
    }

    /// A field that is a whole number.
    pub fn integer(&self, name: &str) -> Option<i64> {
        self.get(name)?.as_i64()
    }

    /// Sets a field to JSON text: where it stands, or behind all others.
    pub fn set_json(&mut self, name: &str, json: String) {
        let at = self.0.iter().rposition(|(field, _)| field == name);
        match at {
            Some(at) => self.0[at].1 = Text::New(json),
            None => self.0.push((Cow::Owned(name.to_owned()), Text::New(json))),
        }
    }

    /// Sets a field.
    pub fn set(&mut self, name: &str, value: &Value) {
        self.set_json(name, value.to_string());
    }

    /// Removes a field.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(field, _)| field != name);
    }

    /// The job's JSON.
    pub fn write(&self) -> Bytes {
        Bytes::from(self.to_json())
    }

    /// The same as text.
    pub fn to_json(&self) -> String {
        let size: usize = self.0.iter().map(|(name, text)| name.len() + text.get().len() + 4).sum();
        let mut json = String::with_capacity(size + 2);
        json.push('{');
        for (at, (name, text)) in self.0.iter().enumerate() {
            if at > 0 {
                json.push(',');
            }
            json.push_str(&Value::from(name.as_ref()).to_string());
            json.push(':');
            json.push_str(text.get());
        }
        json.push('}');
        json
    }
}

impl<'de> Deserialize<'de> for Record<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Record<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(Name(name)) = map.next_key()? {
                    fields.push((name, Text::Kept(map.next_value()?)));
                }
                Ok(Record(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// A field's name, borrowed where nothing in it is escaped.
struct Name<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Borrowing;
        impl<'de> Visitor<'de> for Borrowing {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }
        deserializer.deserialize_str(Borrowing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_edit_keeps_the_bytes_of_every_other_value() {
        let raw = br#"{"class":"A","args":[1E5,-0.0,1.50,12345678901234567890123,"\u00e9\ud83d",{"a" : []}],"x":null,"n":1}"#;
        let mut record = Record::read(raw).unwrap();
        record.set("n", &2.into());
        record.remove("x");
        record.set("new", &"é".into());
        let expected = r#"{"class":"A","args":[1E5,-0.0,1.50,12345678901234567890123,"\u00e9\ud83d",{"a" : []}],"n":2,"new":"é"}"#;
        assert_eq!(record.write(), expected);
    }

    #[test]
    fn of_two_fields_with_one_name_the_last_counts() {
        let mut record = Record::read(br#"{"a":1,"b":0,"a":2}"#).unwrap();
        assert_eq!(record.integer("a"), Some(2));
        record.set("a", &3.into());
        assert_eq!(Record::read(&record.write()).unwrap().integer("a"), Some(3));
        record.remove("a");
        assert_eq!(record.write(), r#"{"b":0}"#);
    }

    #[test]
    fn what_is_no_object_is_no_record() {
        for raw in [&b"[]"[..], b"1", b"\"x\"", b"null", b"", b"{", b"{\"a\":\"\xff\"}"] {
            assert!(Record::read(raw).is_none(), "{raw:?}");
        }
    }

    proptest! {
        #[test]
        fn reading_and_writing_changes_nothing_but_white_space(names in proptest::collection::vec("[a-z\"\\\\é]{0,4}", 0..6), number in "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?") {
            let fields: Vec<String> = names.iter().map(|name| format!("{}:{number}", Value::from(name.as_str()))).collect();
            let json = format!("{{{}}}", fields.join(","));
            prop_assert_eq!(Record::read(json.as_bytes()).unwrap().write(), json);
        }
    }
}
