//! Every start line of the field, to the letter, and what must hold with it: D01 to D20.
//!
//! A program of its own instead of one test each, so that it can end with the table of all twenty. A failure of one fails it.
//!
//! ```sh
//! cargo test -p e2e --test drop_in                  # all
//! cargo test -p e2e --test drop_in -- D06 D11       # those
//! ```
//!
//! Paths of the lines are put below a temporary folder, and ports become free ones, see [`Site`]. What else is added to a
//! line stands beside it, with its reason.

mod line;
mod site;

mod elsewhere;
mod examples;
mod gce;
mod hardened;
mod hypershift;
mod k0s;
mod kamaji;
mod kubeadm;
mod kubermatic;
mod ocm;
mod router;
mod shapes;

use std::{
    env,
    panic::catch_unwind,
    pin::Pin,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicUsize, atomic::Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tokio::{runtime, time::Instant, time::timeout};

use site::Site;

/// How many run at once: they wait more than they compute.
const AT_ONCE: usize = 3;

/// Longest that one may take, so that none holds up the table for ever.
const LIMIT: Duration = Duration::from_secs(300);

/// Flags of the test runner whose value is a word of its own, and selects nothing.
const FLAGS_WITH_VALUES: [&str; 6] = [
    "--test-threads",
    "--skip",
    "--format",
    "--color",
    "--logfile",
    "-Z",
];

type Outcome = Pin<Box<dyn Future<Output = Result<Held>>>>;

/// What a case that did not fail has shown.
enum Held {
    /// What held.
    Here(String),
    /// Where it is run instead, and what of it was looked at.
    Elsewhere(String),
    /// Why this machine cannot run it.
    Skipped(String),
}

impl From<String> for Held {
    fn from(held: String) -> Self {
        Self::Here(held)
    }
}

/// A row of the field's list.
#[derive(Clone, Copy)]
struct Case {
    id: &'static str,
    /// Whose start line, with its section.
    deployer: &'static str,
    /// What must hold with it; tells what was seen to.
    run: fn(Site) -> Outcome,
}

macro_rules! case {
    ($id:literal, $deployer:literal, $run:path) => {
        Case {
            id: $id,
            deployer: $deployer,
            run: |site| Box::pin(async move { Ok(Held::from($run(site).await?)) }),
        }
    };
}

const CASES: [Case; 20] = [
    case!("D01", "k0s (2)", k0s::any_order_of_flags),
    case!("D02", "k0s (2)", k0s::health_checks_of_a_load_balancer),
    case!("D03", "k0s (2)", k0s::stop_with_a_grace_of_a_nanosecond),
    case!("D04", "k0s (2)", k0s::stop_without_a_grace),
    case!(
        "D05",
        "HyperShift (3)",
        hypershift::mutual_tls_on_both_sides
    ),
    case!("D06", "HyperShift (3)", hypershift::two_kinds_of_agents),
    case!("D07", "HyperShift (3)", hypershift::empty_proxy_variables),
    case!("D08", "HyperShift (3)", hypershift::behind_an_sni_router),
    case!("D09", "Kamaji (4)", kamaji::verbosity_8),
    case!("D10", "kubeadm docs (5)", kubeadm::exec_and_logs),
    case!(
        "D11",
        "kind-multinode (6)",
        examples::leases_and_a_headless_service
    ),
    case!(
        "D12",
        "kind-multinode (6)",
        examples::an_identifier_nobody_expanded
    ),
    case!("D13", "GCE scripts (7)", gce::both_profiles),
    case!("D14", "GKE, GCE (8, 7)", gce::memory_limits),
    case!("D15", "Kubermatic (10)", kubermatic::channel_sizes),
    case!("D16", "OCM (12)", ocm::clusters_by_name),
    case!(
        "D17",
        "hardened unit (14)",
        hardened::tls_1_3_among_the_suites
    ),
    case!("D18", "E1, E4, E5 (16)", shapes::egress_files),
    case!("D19", "version skew (12)", elsewhere::version_skew),
    case!("D20", "images (17)", elsewhere::entry_points),
];

/// What became of a case.
struct Row {
    case: Case,
    took: Duration,
    outcome: Result<Held>,
    logs: String,
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            e2e::say!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The arguments are those of the test runner: `--list`, words that select, and flags that have no meaning here.
fn run() -> Result<ExitCode> {
    let mut arguments = env::args().skip(1);
    let (mut words, mut is_list) = (Vec::new(), false);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => is_list = true,
            flag if FLAGS_WITH_VALUES.contains(&flag) => {
                arguments.next();
            }
            flag if flag.starts_with('-') => {}
            _ => words.push(argument),
        }
    }
    let chosen: Vec<Case> = CASES
        .into_iter()
        .filter(|case| words.is_empty() || words.iter().any(|word| case.id == word))
        .collect();
    if is_list {
        for case in chosen {
            print(&format!("{}: test", case.id));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = run_all(&chosen);
    rows.sort_by_key(|row| row.case.id);
    Ok(report(&rows))
}

fn run_all(cases: &[Case]) -> Vec<Row> {
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = run_one(*case);
                    rows.lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .push(row);
                }
            });
        }
    });
    rows.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn run_one(case: Case) -> Row {
    let logs = Arc::new(Mutex::new(String::new()));
    let begin = Instant::now();
    // A panic ends this case alone, and has said why by itself.
    let outcome = catch_unwind(|| run_alone(case, &logs))
        .unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked")));
    let logs = std::mem::take(&mut *logs.lock().unwrap_or_else(PoisonError::into_inner));
    Row {
        case,
        took: begin.elapsed(),
        outcome,
        logs,
    }
}

fn run_alone(case: Case, logs: &Arc<Mutex<String>>) -> Result<Held> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let site = Site::logging_to(Arc::clone(logs)).context("make a site")?;
        match timeout(LIMIT, (case.run)(site)).await {
            Ok(outcome) => outcome,
            Err(_) => bail!("not over within {LIMIT:?}"),
        }
    })
}

/// Prints the table, and what a failure needs.
fn report(rows: &[Row]) -> ExitCode {
    let (mut failures, mut held, mut elsewhere, mut skipped) = (0, 0, 0, 0);
    for row in rows {
        if let Err(error) = &row.outcome {
            print(&format!(
                "\n{} failed: {error:#}\n{}",
                row.case.id, row.logs
            ));
        }
    }
    print("\nDrop-in start lines of the field");
    for Row {
        case,
        took,
        outcome,
        ..
    } in rows
    {
        let (mark, count, what) = match outcome {
            Ok(Held::Here(what)) => ("✓", &mut held, what.as_str()),
            Ok(Held::Elsewhere(what)) => ("→", &mut elsewhere, what.as_str()),
            Ok(Held::Skipped(why)) => ("–", &mut skipped, why.as_str()),
            Err(_) => ("✗", &mut failures, "FAILED, see above"),
        };
        *count += 1;
        let seconds = took.as_secs_f32();
        let Case { id, deployer, .. } = case;
        print(&format!(
            "{mark} {id}  {deployer:<20} {seconds:>5.1} s  {what}"
        ));
    }
    print(&format!(
        "{held} hold, {elsewhere} elsewhere, {skipped} SKIPPED, {failures} failed\n"
    ));
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[expect(clippy::print_stdout, reason = "the table is what this program is for")]
fn print(line: &str) {
    println!("{line}");
}
