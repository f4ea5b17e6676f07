//! The format of `go tool pprof`: `profile.proto` of github.com/google/pprof, as much of it as a CPU profile needs.
//!
//! By hand: a dozen fields written in order, for which no generator and no second protobuf library has to be in the binaries.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// One stack and how often it was seen.
#[derive(Debug)]
pub(super) struct Sample {
    /// From the innermost frame outwards; in a frame from the innermost inlined function outwards.
    pub(super) stack: Vec<Vec<Function>>,
    /// The thread's name.
    pub(super) thread: String,
    /// How often.
    pub(super) count: u64,
}

/// A place in a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) system_name: String,
    pub(super) file: String,
    pub(super) line: u32,
}

/// A profile that is being put together.
#[derive(Debug)]
pub(super) struct Profile {
    samples: Vec<u8>,
    locations: Table<Vec<(u64, u32)>>,
    functions: Table<(u64, u64, u64)>,
    strings: Table<String>,
    start: SystemTime,
    duration: Duration,
    period: Duration,
}

impl Profile {
    /// An empty profile, whose samples stand for `period` of CPU time each.
    pub(super) fn new(start: SystemTime, duration: Duration, period: Duration) -> Self {
        let mut strings = Table::default();
        // The format wants the empty string first; identifiers count from 1 here, and from 0 there.
        strings.id(String::new());
        Self {
            samples: Vec::new(),
            locations: Table::default(),
            functions: Table::default(),
            strings,
            start,
            duration,
            period,
        }
    }

    /// Adds a stack.
    pub(super) fn add(&mut self, sample: Sample) {
        let mut locations = Vec::new();
        for frame in sample.stack {
            let lines = frame.into_iter().map(|place| {
                let name = self.string(&place.name);
                let system_name = self.string(&place.system_name);
                let file = self.string(&place.file);
                (self.functions.id((name, system_name, file)), place.line)
            });
            let lines = lines.collect();
            varint(self.locations.id(lines), &mut locations);
        }
        let mut values = Vec::new();
        varint(sample.count, &mut values);
        varint(sample.count.saturating_mul(nanos(self.period)), &mut values);
        let mut label = Vec::new();
        number(1, self.string("thread"), &mut label);
        number(2, self.string(&sample.thread), &mut label);
        let mut message = Vec::new();
        bytes(1, &locations, &mut message);
        bytes(2, &values, &mut message);
        bytes(3, &label, &mut message);
        bytes(2, &message, &mut self.samples);
    }

    /// The finished profile, not compressed, which the tool takes as well.
    pub(super) fn encode(mut self) -> Vec<u8> {
        let samples = self.value_type("samples", "count");
        let cpu = self.value_type("cpu", "nanoseconds");
        let mut out = Vec::new();
        bytes(1, &samples, &mut out);
        bytes(1, &cpu, &mut out);
        out.append(&mut self.samples);
        for (lines, id) in &self.locations.ids {
            let mut message = Vec::new();
            number(1, *id, &mut message);
            for (function, line) in lines {
                let mut place = Vec::new();
                number(1, *function, &mut place);
                number(2, u64::from(*line), &mut place);
                bytes(4, &place, &mut message);
            }
            bytes(4, &message, &mut out);
        }
        for ((name, system_name, file), id) in &self.functions.ids {
            let mut message = Vec::new();
            number(1, *id, &mut message);
            number(2, *name, &mut message);
            number(3, *system_name, &mut message);
            number(4, *file, &mut message);
            bytes(5, &message, &mut out);
        }
        let mut strings: Vec<_> = self.strings.ids.iter().collect();
        strings.sort_unstable_by_key(|(_, id)| **id);
        for (string, _) in strings {
            bytes(6, string.as_bytes(), &mut out);
        }
        let since_epoch = self.start.duration_since(UNIX_EPOCH).unwrap_or_default();
        number(9, nanos(since_epoch), &mut out);
        number(10, nanos(self.duration), &mut out);
        bytes(11, &cpu, &mut out);
        number(12, nanos(self.period), &mut out);
        out
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> Vec<u8> {
        let mut message = Vec::new();
        number(1, self.string(kind), &mut message);
        number(2, self.string(unit), &mut message);
        message
    }

    /// The string's place in the table of the format.
    fn string(&mut self, text: &str) -> u64 {
        self.strings.id(text.to_owned()).saturating_sub(1)
    }
}

/// Things by number, from 1 on in the order of their coming; each once.
#[derive(Debug)]
struct Table<T> {
    ids: HashMap<T, u64>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            ids: HashMap::new(),
        }
    }
}

impl<T: std::hash::Hash + Eq> Table<T> {
    fn id(&mut self, value: T) -> u64 {
        let next = u64::try_from(self.ids.len()).unwrap_or(u64::MAX) + 1;
        *self.ids.entry(value).or_insert(next)
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Field of wire type 0.
fn number(field: u64, value: u64, out: &mut Vec<u8>) {
    varint(field << 3, out);
    varint(value, out);
}

/// Field of wire type 2.
fn bytes(field: u64, value: &[u8], out: &mut Vec<u8>) {
    varint(field << 3 | 2, out);
    varint(u64::try_from(value.len()).unwrap_or(u64::MAX), out);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand from `profile.proto`.
    #[test]
    fn a_profile_is_the_messages_of_the_format() {
        let mut profile = Profile::new(
            UNIX_EPOCH + Duration::from_nanos(7),
            Duration::from_nanos(300),
            Duration::from_nanos(10),
        );
        profile.add(Sample {
            stack: vec![vec![Function {
                name: "f".to_owned(),
                system_name: "_f".to_owned(),
                file: "f.rs".to_owned(),
                line: 5,
            }]],
            thread: "worker".to_owned(),
            count: 20,
        });
        // Strings: 0 "", 1 f, 2 _f, 3 f.rs, 4 thread, 5 worker, 6 samples, 7 count, 8 cpu, 9 nanoseconds.
        let mut expected = vec![
            0x0a, 4, 0x08, 6, 0x10, 7, // sample_type samples/count
            0x0a, 4, 0x08, 8, 0x10, 9, // sample_type cpu/nanoseconds
            0x12, 14, 0x0a, 1, 1, 0x12, 3, 20, 0xc8, 1, 0x1a, 4, 0x08, 4, 0x10,
            5, // sample, values 20 and 200
            0x22, 8, 0x08, 1, 0x22, 4, 0x08, 1, 0x10, 5, // location
            0x2a, 8, 0x08, 1, 0x10, 1, 0x18, 2, 0x20, 3, // function
        ];
        for string in [
            "",
            "f",
            "_f",
            "f.rs",
            "thread",
            "worker",
            "samples",
            "count",
            "cpu",
            "nanoseconds",
        ] {
            expected.extend([0x32, u8::try_from(string.len()).unwrap()]);
            expected.extend(string.as_bytes());
        }
        expected.extend([0x48, 7, 0x50, 0xac, 2, 0x5a, 4, 0x08, 8, 0x10, 9, 0x60, 10]);
        assert_eq!(profile.encode(), expected);
    }

    #[test]
    fn what_was_seen_before_is_written_once() {
        let place = Function {
            name: "f".to_owned(),
            system_name: "f".to_owned(),
            file: String::new(),
            line: 1,
        };
        let mut profile = Profile::new(UNIX_EPOCH, Duration::ZERO, Duration::ZERO);
        for _ in 0..3 {
            profile.add(Sample {
                stack: vec![vec![place.clone()], vec![place.clone()]],
                thread: "t".to_owned(),
                count: 1,
            });
        }
        assert_eq!(
            (profile.locations.ids.len(), profile.functions.ids.len()),
            (1, 1)
        );
    }
}
