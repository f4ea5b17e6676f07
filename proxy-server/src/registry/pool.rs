//! Backends of which any will do: one is chosen without looking at all of them.

use std::rc::Rc;

use super::backend::{Backend, Rank};

/// How often a willing backend is looked for at random before all are looked at. Only when most are paced, suspect or
/// tried already does that happen.
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
        let mut first = None;
        for _ in 0..SAMPLES {
            let Some(backend) = random(&self.preferred) else {
                break;
            };
            if backend.rank() != Rank::Willing || is_tried(backend) {
                continue;
            }
            match first {
                None => first = Some(backend),
                Some(other) => return Some(less_loaded(backend, other)),
            }
        }
        if let Some(first) = first {
            return Some(first.clone());
        }
        let all = || {
            let all = self.preferred.iter().chain(&self.others);
            all.filter(|backend| backend.rank() <= worst && !is_tried(backend))
        };
        let best = all().map(|backend| backend.rank()).min()?;
        let eligible: Vec<_> = all().filter(|backend| backend.rank() == best).collect();
        Some(less_loaded(random(&eligible)?, random(&eligible)?))
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
