//! What is wrong with the flags, gathered.

/// Faults found so far, in upstream's words where it has any.
#[derive(Debug, Default)]
pub(super) struct Faults(pub(super) Vec<String>);

impl Faults {
    pub(super) fn add(&mut self, fault: String) {
        self.0.push(fault);
    }

    /// The value, or a fault that names the flags.
    pub(super) fn take<T, E: std::error::Error>(
        &mut self,
        flags: &str,
        result: Result<T, E>,
    ) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.add(format!("{flags}: {}", chain(&error)));
                None
            }
        }
    }
}

/// An error with its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
