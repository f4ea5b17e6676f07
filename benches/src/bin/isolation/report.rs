//! What is shown, and what is written.

use std::io::{self, Write};

use benches::{table::Table, usage::Memory};
use serde_json::{Value, json};

use crate::{
    cli::Cli,
    cluster::Both,
    goal,
    idle::Costs,
    row::{Of, Phase, Row},
};

/// What one server is to carry.
const AGENTS: u32 = 5_000;
const CONNECTIONS: u32 = 20_000;

pub(crate) fn print(text: &str) {
    // Whoever closed the pipe wants no more of it.
    drop(io::stdout().write_all(text.as_bytes()));
}

/// Tables of times, of memory, and a line of judgement.
pub(crate) fn isolation(rows: &[Row], cli: &Cli) -> String {
    let mut times = Table::new([
        "tunnel",
        "stall",
        "stalled",
        "echo p50 us",
        "echo p99 us",
        "p50 x",
        "p99 x",
        "dial p50 us",
        "dial p99 us",
        "p50 x",
        "p99 x",
        "server MiB",
        "agent MiB",
        "goals",
    ]);
    let mut memory = Table::new([
        "tunnel",
        "stall",
        "stalled",
        "process",
        "RSS KiB",
        "PSS KiB",
        "private KiB",
        "KiB each",
        "CPU %",
        "TCP buffers MiB",
        "alive",
        "delivered",
    ]);
    let mut misses = 0;
    for row in rows {
        let missed = goal::missed(row, cli.memory_budget);
        misses += usize::from(!missed.is_empty());
        times.row(times_of(row, &missed));
        for cells in memory_of(row) {
            memory.row(cells);
        }
    }
    let verdict = match misses {
        0 => "All goals are met.".to_owned(),
        _ => format!("{misses} of {} rows miss a goal.", rows.len()),
    };
    format!(
        "\nTimes are medians of {} rounds of {} s; x is the median of the rounds' ratios to the same without stalled connections.\n\
         MiB is private memory, before and with them, in the first round.\n\n{times}\n\
         Before -> with.\n\n{memory}\n{verdict}\n",
        cli.rounds,
        cli.time().as_secs()
    )
}

fn direction(row: &Row) -> String {
    match row.stalled {
        0 => "-".to_owned(),
        _ => row.direction.name().to_owned(),
    }
}

fn times_of(row: &Row, missed: &[String]) -> [String; 14] {
    let micros = |of, quantile| format!("{:.0}", row.quantile(of, quantile));
    let ratio = |of, quantile| format!("{:.2}", row.ratio(of, quantile));
    let mib = |of: fn(&Both<Memory>) -> u64| {
        row.memory().map_or_else(String::new, |(before, with)| {
            let mib = |memory| of(memory) as f64 / 1024.0;
            format!("{:.1} -> {:.1}", mib(before), mib(with))
        })
    };
    let verdict = match missed {
        [] => "met".to_owned(),
        some => some.join("; "),
    };
    [
        row.kind.name().to_owned(),
        direction(row),
        row.stalled.to_string(),
        micros(Of::Echo, 0.5),
        micros(Of::Echo, 0.99),
        ratio(Of::Echo, 0.5),
        ratio(Of::Echo, 0.99),
        micros(Of::Dial, 0.5),
        micros(Of::Dial, 0.99),
        ratio(Of::Dial, 0.5),
        ratio(Of::Dial, 0.99),
        mib(|both| both.server.private),
        mib(|both| both.agent.private),
        verdict,
    ]
}

fn memory_of(row: &Row) -> Vec<[String; 12]> {
    let Some(((before, with), first)) = row.memory().zip(row.rounds.first()) else {
        return Vec::new();
    };
    let change = |before: u64, with: u64| format!("{before} -> {with}");
    let shares = (first.without.cpu.each(), first.with.cpu.each());
    before
        .each()
        .into_iter()
        .zip(with.each())
        .zip(shares.0.into_iter().zip(shares.1))
        .map(|(((name, before), (_, with)), ((_, idle), (_, busy)))| {
            let grown = with.private as f64 - before.private as f64;
            [
                row.kind.name().to_owned(),
                direction(row),
                row.stalled.to_string(),
                name.to_owned(),
                change(before.rss, with.rss),
                change(before.pss, with.pss),
                change(before.private, with.private),
                format!("{:.1}", grown / row.stalled.max(1) as f64),
                format!("{:.0} -> {:.0}", idle * 100.0, busy * 100.0),
                change(
                    first.without.tcp_buffers / 1024,
                    first.with.tcp_buffers / 1024,
                ),
                format!("{} of {}", row.alive, row.stalled),
                format!("{} of {}", row.delivered.whole, row.stalled),
            ]
        })
        .collect()
}

/// Everything, with each round.
pub(crate) fn isolation_json(rows: &[Row], cli: &Cli) -> Value {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let rounds: Vec<Value> = row
                .rounds
                .iter()
                .map(|round| json!({"without": phase(&round.without), "with": phase(&round.with)}))
                .collect();
            json!({
                "tunnel": row.kind.name(),
                "direction": row.direction.name(),
                "stalled": row.stalled,
                "echo_p99_ratio": row.ratio(Of::Echo, 0.99),
                "dial_p99_ratio": row.ratio(Of::Dial, 0.99),
                "stood_still": row.stuck,
                "alive": row.alive,
                "delivered": row.delivered.whole,
                "pushed_bytes": row.delivered.pushed,
                "read_bytes": row.delivered.read,
                "missed": goal::missed(row, cli.memory_budget),
                "rounds": rounds,
            })
        })
        .collect();
    json!({
        "seconds": cli.time().as_secs(),
        "memory_budget_bytes": cli.memory_budget,
        "rows": rows,
    })
}

fn phase(phase: &Phase) -> Value {
    let times = |of| {
        json!({
            "p50_us": phase.quantile(of, 0.5),
            "p90_us": phase.quantile(of, 0.9),
            "p99_us": phase.quantile(of, 0.99),
            "p999_us": phase.quantile(of, 0.999),
            "max_us": phase.quantile(of, 1.0),
        })
    };
    let memory = |memory: &Memory| json!({"rss_kib": memory.rss, "pss_kib": memory.pss, "private_kib": memory.private});
    json!({
        "echoes": phase.times.echo.len(),
        "dials": phase.times.dial.len(),
        "echo": times(Of::Echo),
        "dial": times(Of::Dial),
        "stuck_connections": phase.times.stuck,
        "stuck_dials": phase.times.stuck_dials,
        "server": memory(&phase.memory.server),
        "agent": memory(&phase.memory.agent),
        "server_cpu": phase.cpu.server,
        "agent_cpu": phase.cpu.agent,
        "tcp_buffers_kib": phase.tcp_buffers,
    })
}

/// A table of what one of each holds, and what many would.
pub(crate) fn idle(costs: &[Costs]) -> String {
    let mut table = Table::new(["tunnel", "what", "server KiB", "agent KiB"]);
    let mut sums = String::new();
    for cost in costs {
        let kib = |value: f64| format!("{value:.1}");
        let mut row = |what: String, server: String, agent: String| {
            table.row([cost.kind.name().to_owned(), what, server, agent]);
        };
        let Both { server, agent } = &cost.base;
        row("with one tunnel".to_owned(), kib(*server), kib(*agent));
        let Both { server, agent } = &cost.connection;
        let what = format!("an idle connection, of {}", cost.connections);
        row(what, kib(*server), kib(*agent));
        let what = format!("an idle tunnel, of {}", cost.tunnels);
        row(what, kib(cost.tunnel), "-".to_owned());
        for stalled in &cost.stalled {
            let what = format!(
                "a stalled connection, {}, of {}",
                stalled.direction.name(),
                stalled.count
            );
            row(what, kib(stalled.each.server), kib(stalled.each.agent));
        }
        let mib = |kib: f64| kib / 1024.0;
        let tunnels = mib(f64::from(AGENTS) * cost.tunnel);
        let connections = mib(f64::from(CONNECTIONS) * cost.connection.server);
        let base = mib(cost.base.server);
        sums += &format!(
            "{}: {AGENTS} agents x {:.1} KiB = {tunnels:.0} MiB, {CONNECTIONS} idle connections x {:.1} KiB = {connections:.0} MiB, \
             base {base:.1} MiB: {:.0} MiB at one server\n",
            cost.kind.name(),
            cost.tunnel,
            cost.connection.server,
            tunnels + connections + base,
        );
    }
    format!("\nPrivate memory.\n\n{table}\n{sums}")
}

/// The same as values.
pub(crate) fn idle_json(costs: &[Costs]) -> Value {
    let both = |both: &Both<f64>| json!({"server_kib": both.server, "agent_kib": both.agent});
    costs
        .iter()
        .map(|cost| {
            let stalled: Vec<Value> = cost
                .stalled
                .iter()
                .map(|stalled| {
                    json!({
                        "direction": stalled.direction.name(),
                        "count": stalled.count,
                        "each": both(&stalled.each),
                    })
                })
                .collect();
            json!({
                "tunnel": cost.kind.name(),
                "base": both(&cost.base),
                "connection": both(&cost.connection),
                "server_kib_per_tunnel": cost.tunnel,
                "stalled": stalled,
            })
        })
        .collect()
}
