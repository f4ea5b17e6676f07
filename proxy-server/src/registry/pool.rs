//! Backends of which any will do: one is chosen without looking at all of them.

use std::rc::Rc;

use super::backend::{Backend, Rank};

/// Among more than this many, willing backends are looked for at random, so often at most, before all are looked at: which
/// happens only when nearly all are paced, suspect or tried already.
const SAMPLES: usize = 16;

/// Backends, those that drain or are superseded apart from the others.
#[derive(Debug, Default)]
pub(super) struct Pool {
    preferred: Vec<Rc<Backend>>,
    others: Vec<Rc<Backend>>,
}

impl Pool {
    pub(super) fn insert(&mut self, backend: &Rc<Backend>) {
        let list = if backend.is_preferred() {
            &mut self.preferred
        } else {
            &mut self.others
        };
        list.push(backend.clone());
    }

    /// Whether it was there.
    pub(super) fn remove(&mut self, backend: &Rc<Backend>) -> bool {
        for list in [&mut self.preferred, &mut self.others] {
            if let Some(at) = list.iter().position(|other| Rc::ptr_eq(other, backend)) {
                list.swap_remove(at);
                return true;
            }
        }
        false
    }

    /// Puts it where it belongs now, if it is there.
    pub(super) fn sort_in(&mut self, backend: &Rc<Backend>) {
        if self.remove(backend) {
            self.insert(backend);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.preferred.is_empty() && self.others.is_empty()
    }

    /// Of two random ones among the most willing, the less loaded; none that is in `tried` or ranks worse than `worst`.
    pub(super) fn choose(&self, tried: &[Rc<Backend>], worst: Rank) -> Option<Rc<Backend>> {
        let is_tried = |backend: &Rc<Backend>| tried.iter().any(|other| Rc::ptr_eq(other, backend));
        if self.preferred.len() > SAMPLES {
            let samples = (0..SAMPLES).filter_map(|_| random(&self.preferred));
            let mut willing =
                samples.filter(|backend| backend.rank() == Rank::Willing && !is_tried(backend));
            if let Some(one) = willing.next() {
                // Another one, or a busy one would compete with itself.
                let other = willing.find(|other| !Rc::ptr_eq(one, other));
                return Some(less_loaded(one, other.unwrap_or(one)));
            }
        }
        let all = || {
            let all = self.preferred.iter().chain(&self.others);
            all.filter(|backend| backend.rank() <= worst && !is_tried(backend))
        };
        let best = all().map(|backend| backend.rank()).min()?;
        let mut eligible: Vec<_> = all().filter(|backend| backend.rank() == best).collect();
        let one = eligible.swap_remove(fastrand::usize(..eligible.len()));
        let other = random(&eligible).unwrap_or(&one);
        Some(less_loaded(one, other))
    }
}

fn random<T>(list: &[T]) -> Option<&T> {
    if list.is_empty() {
        return None;
    }
    list.get(fastrand::usize(..list.len()))
}

fn less_loaded(one: &Rc<Backend>, other: &Rc<Backend>) -> Rc<Backend> {
    Rc::clone(if other.load() < one.load() {
        other
    } else {
        one
    })
}
