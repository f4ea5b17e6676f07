//! Both ends of a stream tunnel over a pipe in memory, with time that stands still.

mod close;
mod flow;
mod forward;
mod hostile;
mod keystrokes;
mod pair;
mod schedule;
mod tunnel;
