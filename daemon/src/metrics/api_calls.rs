//! Calls to the Kubernetes API, as upstream counts them: by HTTP status and by the reason of the answer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{HistogramVec, IntCounterVec, Result};

use super::Factory;

/// Longest reason that becomes a label; the API's own are shorter. What is longer, or no word, counts under `Other`.
pub const MAX_REASON_BYTES: usize = 32;

/// Most pairs of status and reason that are told apart, far more than the API has; an API server that invents reasons
/// counts under `Other` from then on.
const MAX_PAIRS: usize = 256;

/// One kind of call. Cheap to clone, may be used from any thread.
#[derive(Clone, Debug)]
pub struct ApiCalls {
    counters: IntCounterVec,
    latencies: Option<HistogramVec>,
    known: Arc<Mutex<BTreeSet<(u16, String)>>>,
}

impl ApiCalls {
    /// Counts in `name`, whose labels are `code_label` and `reason`; the series of success (200, no reason) is there from
    /// the start. `latency` is a histogram by `code_label`: name, help, upper bounds.
    ///
    /// # Errors
    /// As [`Factory`] says.
    pub fn new(
        make: Factory<'_>,
        code_label: &str,
        (name, help): (&str, &str),
        latency: Option<(&str, &str, &[f64])>,
    ) -> Result<Self> {
        let counters = make.counters_by(name, help, &[code_label, "reason"])?;
        counters.get_metric_with_label_values(&["200", ""])?;
        let latencies = latency
            .map(|(name, help, buckets)| make.histograms(name, help, buckets, code_label, &["200"]))
            .transpose()?;
        Ok(Self {
            counters,
            latencies,
            known: Arc::default(),
        })
    }

    /// A call was answered: with 200 and no reason, or with what the answer's `metav1.Status` says. Upstream counts no call that
    /// got no answer; count those with code 0 and a reason of your own.
    pub fn answered(&self, code: u16, reason: &str, took: Duration) {
        let (code, reason) = self.labels(code, reason);
        self.counters.with_label_values(&[&code, &reason]).inc();
        if let Some(latencies) = &self.latencies {
            latencies
                .with_label_values(&[&code])
                .observe(took.as_secs_f64());
        }
    }

    /// Labels of bounded length and number.
    fn labels(&self, code: u16, reason: &str) -> (String, String) {
        let is_word = reason.len() <= MAX_REASON_BYTES
            && reason.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let code = if code < 600 { code } else { 0 };
        let pair = (code, if is_word { reason } else { "Other" }.to_owned());
        // Poisoned only by a panic between these lines, which change nothing by halves.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MAX_PAIRS {
            known.insert(pair.clone());
        }
        if known.contains(&pair) {
            (code.to_string(), pair.1)
        } else {
            ("0".to_owned(), "Other".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::*;

    #[test]
    fn answers_count_by_status_and_reason_and_there_is_a_bound() {
        let registry = Registry::new();
        let make = Factory::new(&registry, "x_");
        let latency = Some(("list_seconds", "Latency.", &[1.0][..]));
        let calls = ApiCalls::new(make, "code", ("list_total", "Calls."), latency).unwrap();
        let took = Duration::from_millis(500);
        calls.answered(200, "", took);
        calls.answered(403, "Forbidden", took);
        calls.answered(500, "a reason\nof no \"word\"", took);
        let text = TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        for line in [
            "x_list_total{code=\"200\",reason=\"\"} 1\n",
            "x_list_total{code=\"403\",reason=\"Forbidden\"} 1\n",
            "x_list_total{code=\"500\",reason=\"Other\"} 1\n",
            "x_list_seconds_sum{code=\"403\"} 0.5\n",
            "x_list_seconds_bucket{code=\"200\",le=\"1\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        for number in 0..5000_u16 {
            calls.answered(number, &format!("r{number}"), took);
        }
        let text = TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap();
        let series = text.matches("x_list_total{").count();
        assert!((200..=MAX_PAIRS + 1).contains(&series), "{series}");
    }
}
