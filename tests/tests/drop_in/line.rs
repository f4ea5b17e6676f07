//! Start lines as manifests have them.

use std::fmt;

use e2e::harness::free_port;

/// The words of a container's `args` or of a unit's `ExecStart`, flag by flag, in their order and their form.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    flags: Vec<Flag>,
}

#[derive(Clone, Debug)]
struct Flag {
    /// With its dashes: `-v` and `--v` are two ways to write one flag.
    name: String,
    value: Option<String>,
    form: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `--name=value`, or `--name` alone.
    OneWord,
    /// `--name value`.
    TwoWords,
}

impl Line {
    /// A line as it stands in the field, any white space between its words.
    pub(crate) fn new(text: &str) -> Self {
        let mut words = text.split_whitespace().peekable();
        let mut flags = Vec::new();
        while let Some(word) = words.next() {
            flags.push(match word.split_once('=') {
                Some((name, value)) => Flag {
                    name: name.to_owned(),
                    value: Some(value.to_owned()),
                    form: Form::OneWord,
                },
                None => {
                    let value = words.next_if(|next| !next.starts_with('-'));
                    Flag {
                        name: word.to_owned(),
                        form: value.map_or(Form::OneWord, |_| Form::TwoWords),
                        value: value.map(str::to_owned),
                    }
                }
            });
        }
        Self { flags }
    }

    /// The same with more flags behind it: what a test adds and says so.
    pub(crate) fn and(mut self, text: &str) -> Self {
        self.flags.extend(Self::new(text).flags);
        self
    }

    /// The same flags in another order.
    pub(crate) fn shuffled(mut self) -> Self {
        fastrand::shuffle(&mut self.flags);
        self
    }

    /// The value of a flag, by its name without dashes; the last one wins. Empty counts as absent.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        let flag = self.flags.iter().rfind(|flag| flag.is(name))?;
        flag.value.as_deref().filter(|value| !value.is_empty())
    }

    /// Replaces every value by what `change` makes of it.
    pub(crate) fn map(
        mut self,
        mut change: impl FnMut(&str, &str) -> anyhow::Result<String>,
    ) -> anyhow::Result<Self> {
        for flag in &mut self.flags {
            if let Some(value) = &mut flag.value {
                *value = change(flag.name.trim_start_matches('-'), value)?;
            }
        }
        Ok(self)
    }

    /// Gives the port flags of `names` free ports. 0, which is "none", stays. A flag that the line leaves to its default is added, since the
    /// default is one fixed port for every test at once.
    pub(crate) fn with_free_ports(self, names: &[&str]) -> anyhow::Result<Self> {
        let mut line = self.map(|name, value| {
            Ok(if names.contains(&name) && value != "0" {
                free_port()?.to_string()
            } else {
                value.to_owned()
            })
        })?;
        for name in names {
            if line.value(name).is_none() {
                line = line.and(&format!("--{name}={}", free_port()?));
            }
        }
        Ok(line)
    }

    /// The arguments of the process.
    pub(crate) fn words(&self) -> Vec<String> {
        let words = self.flags.iter().flat_map(|flag| {
            let Flag { name, value, form } = flag;
            match (value, form) {
                (None, _) => vec![name.clone()],
                (Some(value), Form::OneWord) => vec![format!("{name}={value}")],
                (Some(value), Form::TwoWords) => vec![name.clone(), value.clone()],
            }
        });
        words.collect()
    }
}

impl Flag {
    fn is(&self, name: &str) -> bool {
        self.name.trim_start_matches('-') == name
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}
